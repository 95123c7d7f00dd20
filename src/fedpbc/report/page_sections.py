"""The parts of a page: what was run, the charts' places, and how to run it all again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison, Row
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.report.groups import RATES, RunGroup, flattened, made_in_python
from fedpbc.report.load import ShownRun
from fedpbc.report.page_tables import comparison_table, footnote_list, runs_table
from fedpbc.simulation.views import VIEWS

__all__ = ["group_section", "toolbar"]


def toolbar(groups: Sequence[Mapping[str, Any]]) -> str:
    """What can be chosen, for all charts at once."""
    views = {view for group in groups for c in group["curves"].values() for view in c["views"]}
    own = [view for view in VIEWS if view in views]
    named = [("paper", "the paper's view"), ("best", "best deployable view")]
    options = "".join(
        f'<option value="{value}">{text}</option>'
        for value, text in [*named, *((view, f"view {view}") for view in own)]
    )
    values = list(dict.fromkeys(key for group in groups for key in group["values"]))
    shown = "".join(
        f'<option value="{escape(key)}">{escape(key.replace("_", " "))}</option>' for key in values
    )
    axes = "".join(
        f'<button type="button" value="{value}">{text}</button>'
        for value, text in (
            ("round", "rounds"),
            ("local_steps", "local steps"),
            ("uploads", "uploads"),
        )
    )
    return (
        '<div class="bar"><div>'
        '<span><span class="label" id="label-x">over</span><span class="choice" id="choose-x" '
        f'role="group" aria-labelledby="label-x">{axes}</span></span>'
        '<span><label for="choose-view">model judged</label>'
        f'<select id="choose-view" aria-label="model judged">{options}</select></span>'
        '<span><label for="choose-value">value</label>'
        f'<select id="choose-value" aria-label="value">{shown}</select></span>'
        "</div></div>"
    )


def group_section(
    number: int,
    group: RunGroup,
    comparison: Comparison,
    rows: Sequence[Row],
    so_far: int | None,
    charts: Mapping[str, Any],
) -> str:
    """Everything about one group."""
    notes = [*group.notes]
    if so_far is not None:
        notes.insert(0, f"No run is finished: this is what they had after {so_far:,} rounds.")
    table = comparison_table(group, comparison, rows) if rows else ""
    if not rows:
        notes.insert(0, "Nothing has been evaluated yet.")
    return "\n".join(
        [
            f'<section class="group" id="group-{number}">',
            f"<h2>{escape(group.title)}</h2>",
            facts(group),
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            table,
            footnote_list(group, comparison) if rows else "",
            chart_places(number, charts, comparison),
            "<h3>The runs</h3>",
            runs_table(number, group, opened=len(group.runs) <= 6),
            run_again(number, group),
            "</section>",
        ]
    )


def facts(group: RunGroup) -> str:
    """What all runs of a group share, in few words."""
    first = group.runs[0]
    flat = flattened(first.config)
    seeds = sorted({run.seed for run in group.runs if run.seed is not None})
    listed = [
        ("rounds", f"{first.rounds:,}"),
        ("clients", f"{first.clients:,}" if first.clients else None),
        ("seeds", ", ".join(map(str, seeds)) if len(seeds) <= 8 else f"{len(seeds)}"),
        ("model", flat.get("model.name")),
        ("Dirichlet α", flat.get("data.alpha")),
        ("local steps a round", flat.get("train.local_steps")),
        ("batch", flat.get("train.batch_size")),
        *zip(("η_0", "η_g"), _common_rates(group), strict=True),
        ("links", _links(flat)),
    ]
    items = "".join(
        f"<li>{escape(key)} <b>{escape(str(value))}</b></li>"
        for key, value in listed
        if value not in (None, "")
    )
    return f'<ul class="facts">{items}</ul>'


def _common_rates(group: RunGroup) -> list[str | None]:
    found: list[str | None] = []
    for key in RATES:
        values = {flattened(run.config).get(key) for run in group.runs} - {None}
        found.append(str(values.pop()) if len(values) == 1 else "differ" if values else None)
    return found


def _links(flat: Mapping[str, Any]) -> str:
    own = {
        key.removeprefix("links."): value
        for key, value in flat.items()
        if key.startswith("links.") and key != "links.name"
    }
    shown = [
        f"{key} {value}" if not isinstance(value, list) else f"{key} of {len(value)} clients"
        for key, value in own.items()
    ]
    name = str(flat.get("links.name", "?"))
    return f"{name} ({', '.join(shown)})" if shown else name


def chart_places(number: int, charts: Mapping[str, Any], comparison: Comparison) -> str:
    """Where the charts go, and what they show."""
    fleet = charts["fleet"]
    has_classes = bool(charts["per_class"])
    seeds = max((c["seeds"] for c in charts["curves"].values()), default=0)
    bands = "Bands: ± one deviation over seeds." if seeds > 1 else "One seed."
    first = "Test accuracy" if "test_accuracy" in charts["values"] else "How good it is"
    parts = [
        place(
            number,
            "curve",
            first,
            f"{bands} Choose above over what, and which model is judged; click a name to hide it.",
            wide=True,
            legend=True,
        ),
    ]
    if has_classes:
        parts.append(
            place(
                number,
                "classes",
                "Test accuracy of each class, %",
                f"Mean over seeds and over the last {comparison.window:,} rounds.",
                wide=True,
            )
        )
    parts += fleet_places(number, fleet)
    parts += [
        place(
            number,
            "staleness",
            "Staleness",
            "Rounds since each client's last contact: the largest of all clients (dashed) and "
            "their mean. The same for all algorithms; mean over seeds.",
        ),
        place(
            number,
            "consensus",
            "Consensus error",
            "How far the clients' models are from their mean; where it is known, with Lemma 3's "
            "bound. Mean over seeds.",
            legend=True,
        ),
        place(number, "seconds", "Time over rounds", "Mean over seeds.", legend=True),
        place(number, "time", "Time of a run", "Mean over seeds; hatched: aided by memory."),
        place(
            number,
            "memory",
            "Peak memory of a run",
            "Its process and its workers together; mean over seeds.",
        ),
    ]
    return f'<div class="charts">{"".join(parts)}</div>'


def fleet_places(number: int, fleet: Mapping[str, Any] | None) -> list[str]:
    """Who gets through, how likely, and who holds what."""
    if fleet is None:
        why = "These runs have no record of their fleet: they were made by an earlier version."
        return [
            f"<figure><figcaption><b>Links and data</b></figcaption>"
            f'<div class="plot none">{why}</div></figure>'
        ]
    seed = f"Seed {fleet['seed']}."
    part = ""
    if fleet["shown_rounds"] < fleet["rounds"] or fleet["shown_clients"] < fleet["clients"]:
        part = (
            f" The first {fleet['shown_rounds']:,} of {fleet['rounds']:,} rounds, "
            f"{fleet['shown_clients']:,} of {fleet['clients']:,} clients."
        )
    timetable = (
        '<figure class="wide"><figcaption><b>Who gets through</b><small>'
        f"The uplinks’ timetable: blue is up. {seed}{part}</small></figcaption>"
        '<div class="timetable"><span class="y">client</span>'
        f'<canvas data-group="{number}" role="img" aria-label="timetable of the uplinks"></canvas>'
        f'<div class="x"><span>1</span><span>round</span><span>{fleet["shown_rounds"]:,}</span>'
        "</div></div></figure>"
    )
    clients = f"{fleet['p_clients']:,} clients"
    if fleet["known_p"]:
        likely = place(
            number, "likely", "How likely links are up", f"Histogram of pᵢ, {clients}. {seed}"
        )
    else:
        likely = place(
            number,
            "likely",
            "How often links are up",
            f"These links have no pᵢ: the share of rounds in which each of {clients} got through. "
            f"{seed}",
        )
    parts = [timetable, likely]
    if fleet["class_counts"] is not None:
        count = len(fleet["class_counts"])
        first = f"The first {count:,} clients." if count < fleet["clients"] else ""
        caption = f"How many samples of each class. {seed} {first}"
        # As wide as the timetable above it, client by client.
        parts.insert(1, place(number, "clients", "Data of each client", caption, wide=True))
    return parts


def place(
    number: int, chart: str, title: str, about: str, *, wide: bool = False, legend: bool = False
) -> str:
    """A chart's place."""
    names = '<div class="legend"></div>' if legend else ""
    kind = ' class="wide"' if wide else ""
    return (
        f"<figure{kind}><figcaption><b>{escape(title)}</b>"
        f"<small>{escape(about)}</small></figcaption>{names}"
        f'<div class="plot" data-chart="{chart}" data-group="{number}" role="img" '
        f'aria-label="{escape(title)}"></div></figure>'
    )


SHOWN_COMMANDS = 4


def run_again(number: int, group: RunGroup) -> str:
    """The commands that make these runs once more, and a whole configuration."""
    begun = [run for run in group.runs if run.state != "not begun"]
    lines = commands_for(group.runs)
    config = ""
    if begun:
        try:
            text = (begun[0].path / "config.toml").read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = ""
        name = f"config.toml of {begun[0].algorithm}, seed {begun[0].seed}"
        if text:
            config = (
                f'<details id="config-{number}"><summary>{escape(name)}</summary>'
                f"<pre>{escape(text)}</pre></details>"
            )
    return f"<h3>Run it again</h3><pre>{escape(chr(10).join(lines))}</pre>{config}"


def commands_for(runs: Sequence[ShownRun]) -> list[str]:
    """What to type to make runs once more, or to go on with them."""
    lines: list[str] = []
    roots: dict[Path, list[ShownRun]] = {}
    alone: list[ShownRun] = []
    for run in runs:
        root = run.path.parent.parent
        if ComparisonDirectory(root).holds_comparison:
            roots.setdefault(root, []).append(run)
        elif run.state != "not begun":
            alone.append(run)
    for root, members in roots.items():
        if any(run.state in {"unfinished", "not begun"} for run in members):
            lines.append(f"fedpbc resume {shlex.quote(str(root))}")
        plan = shlex.quote(str(root / "compare.toml"))
        lines.append(f"fedpbc compare {plan} --out NEW-FOLDER")
    if alone and made_in_python(alone[0]):
        where = str(alone[0].path)
        return [*lines, f"# made from Python: simulate(…, out={where!r}) there, and so on"]
    for run in alone[:SHOWN_COMMANDS]:
        place = shlex.quote(str(run.path))
        if run.state == "unfinished":
            lines.append(f"fedpbc resume {place}")
        plan = shlex.quote(str(run.path / "config.toml"))
        lines.append(f"fedpbc run {plan} --out NEW-FOLDER")
    if len(alone) > SHOWN_COMMANDS:
        more = len(alone) - SHOWN_COMMANDS
        lines.append(f"# and in the same way {more:,} more: each folder has its config.toml")
    return lines
