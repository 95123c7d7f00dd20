"""What the page says of one group of runs, prepared for templates/group.html.j2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.configuration import is_python_task
from fedpbc.experiments.score_text import score_text
from fedpbc.experiments.verdict import Verdict
from fedpbc.report.chart_data import chart_data, comparison_of
from fedpbc.report.comparison_table import last_rounds
from fedpbc.report.groups import LEARNING_RATES, RunGroup, flatten
from fedpbc.report.load import LoadedRun
from fedpbc.report.page_tables import (
    clients_table,
    comparison_table,
    count_states,
    page_footnotes,
    paired_table,
    runs_table,
)
from fedpbc.report.paired_table import paired_notes, shows_differences
from fedpbc.report.run_names import is_ceiling_run, is_compared, root_of
from fedpbc.storage.files import read_own_file
from fedpbc.text import shell_quoted

__all__ = ["group_section"]

OPEN_RUNS = 6
"""The table of runs starts unfolded if it has at most this many rows."""
OPEN_GROUPS = 3
"""Of more groups than this, only the first starts unfolded."""
SHOWN_COMMANDS = 4
SHOWN_FAILURES = 3
MOST_VALUES = 4
"""Of an option that differs between the runs of a group."""
MAX_CONFIG = 1 << 20
"""Bytes of a configuration that the page shows."""


def group_section(
    number: int, group: RunGroup, group_count: int, baseline: str | None = None
) -> dict[str, Any]:
    """Return the template's values for one of ``group_count`` groups."""
    comparison, shown_rounds = comparison_of(group)
    rows = comparison.rows()
    charts = chart_data(group, comparison, rows, group_count)
    notes = [*group.notes]
    if shown_rounds is not None:
        notes.insert(0, f"No run is finished yet: this shows the first {shown_rounds:,} rounds.")
    if not rows:
        may_follow = any(run.state in {"unfinished", "not begun"} for run in group.runs)
        notes.insert(0, f"Nothing has been evaluated{' yet' if may_follow else ''}.")
    config_name, config = _first_config(group.runs)
    return {
        "number": number,
        "title": group.title,
        "facts": _facts(group),
        "notes": notes,
        "failures": _failures(group),
        "verdicts": _verdicts(comparison, baseline) if len(comparison.runs) > 1 and rows else (),
        "table": comparison_table(comparison, rows, charts["memory"]) if rows else None,
        "footnotes": page_footnotes(group, comparison) if rows else (),
        "clients_table": clients_table(charts["per_client"], charts["aided"]),
        "open": group_count <= OPEN_GROUPS or number == 0,
        "charts": charts,  # Also embedded in the page, as JSON.
        "seeds": max((curve["seeds"] for curve in charts["curves"].values()), default=0),
        "last_rounds": last_rounds(comparison),
        "runs": runs_table(group),
        "runs_open": len(group.runs) <= OPEN_RUNS,
        "run_states": count_states(group.runs),
        "commands": commands_for(group.runs),
        "config": config,
        "config_name": config_name,
    }


def _failures(group: RunGroup) -> list[str]:
    """Return why runs failed, the first of them; the table of runs has all."""
    failed = [run for run in group.runs if run.state == "failed"]
    lines = [f"{group.label_of(run)}, seed {run.seed}, failed: {run.note}" for run in failed]
    more = len(lines) - SHOWN_FAILURES
    return [*lines[:SHOWN_FAILURES], *([f"{more} more failed, see below"] if more > 0 else [])]


def _verdicts(comparison: Comparison, baseline: str | None) -> list[dict[str, Any]]:
    """Return each condition's verdict, its table of differences, and the notes on that."""
    parts = []
    for condition, part in comparison.by_condition().items():
        reference = part.baseline_label(baseline)
        paired, verdict = part.paired(reference), part.verdict(reference)
        shown = shows_differences(paired)
        parts.append(
            {
                "condition": condition,
                "sentence": verdict.sentence,
                "short": _short(verdict),
                "table": paired_table(part, paired, verdict) if shown else None,
                "notes": paired_notes(paired) if shown else (),
            }
        )
    return parts


def _short(verdict: Verdict) -> str:
    """Who is clearly the best, or ahead; empty if nobody is ranked."""
    if verdict.best is None:
        return ""
    score = score_text(verdict.means[verdict.best], verdict.has_classes)
    named = f"{verdict.best} (view {verdict.view}), {score}"
    return named if verdict.winner is not None else f"undecided; {named}, is ahead"


def _facts(group: RunGroup) -> list[tuple[str, str]]:
    configs = [
        flatten(run.config)
        for run in group.runs
        if run.config.get("links") and not is_ceiling_run(run)
    ]
    seeds = sorted({run.seed for run in group.runs if run.seed is not None})
    # Where all curves are of one algorithm, their names do not say which.
    names = {run.algorithm for run in group.runs if not is_ceiling_run(run)}
    unsaid = len(names) == 1 and not any(n in group.label_of(r) for r in group.runs for n in names)
    facts = [
        ("algorithm", names.pop() if unsaid else ""),
        ("rounds", _listed(_count(config.get("rounds") or 0) for config in configs)),
        ("clients", _listed(_count(n) for config in configs if (n := config.get("clients")))),
        ("seeds", ", ".join(map(str, seeds)) if len(seeds) <= 8 else f"{len(seeds)}"),
        *(
            (name, _listed(config.get(key) for config in configs))
            for name, key in (
                ("model", "model.name"),
                ("Dirichlet α", "data.alpha"),
                ("local steps per round", "train.local_steps"),
                ("batch", "train.batch_size"),
                *zip(("η_0", "η_g"), LEARNING_RATES, strict=True),
            )
        ),
        ("links", _listed(map(_describe_links, configs), "; ")),
    ]
    return [(name, value) for name, value in facts if value]


def _count(value: Any) -> str:
    """A number with its thousands apart; a damaged configuration may have anything."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _listed(values: Iterable[Any], between: str = ", ") -> str:
    """Return the different values, or that they differ if there are many."""
    texts = list(dict.fromkeys(str(value) for value in values if value is not None))
    return between.join(texts) if len(texts) <= MOST_VALUES else "differ"


def _describe_links(options: Mapping[str, Any]) -> str:
    described = [
        f"{key.removeprefix('links.')} "
        + (f"of {len(value)} clients" if isinstance(value, list) else str(value))
        for key, value in options.items()
        if key.startswith("links.") and key != "links.name"
    ]
    name = str(options.get("links.name", "?"))
    return f"{name} ({', '.join(described)})" if described else name


def _first_config(runs: Sequence[LoadedRun]) -> tuple[str, str]:
    """Return a name and the text of the first config.toml; empty if it cannot be read."""
    for run in runs:
        if run.state != "not begun":
            try:
                text = read_own_file(run.path, "config.toml", MAX_CONFIG).decode()
            except (OSError, ValueError):
                break
            name = "config.toml" if run.stored else "options"
            return f"{name} of {run.algorithm}, seed {run.seed}", text
    return "", ""


def commands_for(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the commands that make runs again or resume them."""
    lines: list[str] = []
    comparisons: dict[Path, list[LoadedRun]] = {}
    single: list[LoadedRun] = []
    for run in runs:
        directory = run.path.parent.parent
        if ComparisonDirectory(directory).holds_comparison:
            comparisons.setdefault(directory, []).append(run)
        elif run.state != "not begun":
            single.append(run)
    for directory, members in comparisons.items():
        if any(run.state in {"unfinished", "not begun"} for run in members):
            lines.append(f"fedpbc resume {shell_quoted(directory)}")
        lines.append(_repeat("compare", directory / "compare.toml"))
    if single and is_python_task(single[0].config):
        calls = list(dict.fromkeys(map(_python_call, single)))
        lines += calls[:SHOWN_COMMANDS]
        if (more := len(calls) - SHOWN_COMMANDS) > 0:
            lines.append(f"# {more:,} more runs, each in a folder of its own")
        return lines
    for run in single[:SHOWN_COMMANDS]:
        if run.state == "unfinished":
            lines.append(f"fedpbc resume {shell_quoted(run.path)}")
        lines.append(_repeat("run", run.path / "config.toml"))
    if (more := len(single) - SHOWN_COMMANDS) > 0:
        lines.append(f"# {more:,} more runs: each folder has its config.toml")
    return lines


def _python_call(run: LoadedRun) -> str:
    """Return the call that made a run; only the program that has its task can make it again."""
    if not run.stored:
        call = "compare" if run.path.name.startswith("seed-") else "simulate"
        return f"# made from Python by {call}(…), and not stored: its option out stores runs"
    if is_compared(run):
        return f"# made from Python: compare(…, out={str(root_of(run))!r})"
    return f"# made from Python: simulate(…, out={str(run.path)!r})"


def _repeat(command: str, file: Path) -> str:
    return f"fedpbc {command} {shell_quoted(file)} --out NEW-FOLDER"
