"""Advice as one HTML page and as JSON, for somebody who never heard of these algorithms."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.advice.advise import Advice
from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.advice.recommendation import Recommendation
from fedpbc.experiments.advice.request import BASELINE
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.score_text import between, number_text, score_text
from fedpbc.links.trace import recorded_rounds, trace_extent
from fedpbc.report.byte_units import with_unit
from fedpbc.report.groups import group_runs
from fedpbc.report.link_statistics import SUBJECTS, link_figure, plot_links
from fedpbc.report.load import find_runs, load_runs
from fedpbc.report.page import render_page
from fedpbc.report.page_sections import group_section
from fedpbc.report.page_tables import PageTable, TableCell
from fedpbc.report.paired_table import paired_headings, paired_notes, paired_rows
from fedpbc.report.pictures import embedded_figure
from fedpbc.report.plot import plot_comparison
from fedpbc.report.tuning import settings_text
from fedpbc.storage.atomic import write_atomically
from fedpbc.text import listed, shell_quoted

__all__ = ["answer_lines", "remarks", "scope_of_links", "write_advice"]

VIEWS = {
    "server": "the model that the server holds after the last round",
    "averaged": "a moving average of the server's models, which the server keeps beside it",
    "reported": "the mean of the last model that each device reported, which the server keeps",
    "corrected": "the moving average, corrected by what each device reported last",
}
WORDS = {
    "uplink": "a device's connection to the server; while it is down, nothing arrives",
    "round": "the time in which the server waits for devices; who is up takes part",
    "FedAvg": "the usual algorithm: the server averages what arrived in the round",
    "η_0, η_g": "step sizes: how far a device goes with each local step in the first rounds, and "
    "how far the server goes towards what arrived; at η_g 1 it takes it as it is",
    "seed": "what links, the split of the data over devices, the first model and batches are drawn "
    "from: with the same seed they are the same for all algorithms",
    "95 % interval": "where the true mean over all seeds lies, in 95 of 100 such intervals; if "
    "that of a difference includes 0, the difference may be chance",
    "p": "how often chance alone would show as much as the log does; below 0.05 it counts as real",
    "ρ": "what part of the disagreement between devices is left after a round, in the mean square; "
    "near 1 their models come together slowly",
    "held-out samples": "training samples that settings are chosen by, since nothing is trained on "
    "them; the test data is used for the comparison only",
    "models on server, on client": "how many vectors as large as the model are kept from round to "
    "round",
    "†": "aided by memory or known statistics: the server or a device keeps more than the model, "
    "or knows how likely links are to be up",
    "ceiling": "FedAvg if every link were always up, with step sizes of its own where algorithms "
    "were tuned: what failing links cost is the distance to it",
    "recovered": "the share of that distance which an algorithm gains back",
    "local step": "one step of a device's own training on a batch of its samples",
    "view": "which model is deployed; a server can keep others than the last one",
    "within noise": "the difference between two algorithms changes more from seed to seed than it "
    "amounts to",
}


def answer_lines(advice: Advice) -> list[str]:
    """The recommendation in a few lines: what to run, what it gives, what it costs."""
    recommendation = advice.recommendation
    if recommendation is None:
        limits = ", ".join(advice.request.constraints.described())
        return [f"No algorithm was found that keeps the limits: {limits}."]
    what = f"Run {recommendation.algorithm} and deploy its view '{recommendation.view}'"
    settings = settings_text(recommendation.settings)
    lines = [f"{what}, with {settings}." if settings else f"{what}, with the default settings."]
    lines.append(_expected(recommendation, baseline_tuned=bool(advice.settings.get(BASELINE))))
    lines.extend(recommendation.why)
    if _settings_tried(advice) <= 1 and not advice.request.tuned:
        lines.append(
            "There was no time to tune: tuned step sizes often gain several points, and may change "
            "the order."
        )
    lines.append(_costs(recommendation))
    return lines


def _expected(recommendation: Recommendation, baseline_tuned: bool) -> str:
    kind = "test accuracy" if recommendation.has_classes else "test loss"
    mean = score_text(recommendation.mean, recommendation.has_classes).removeprefix("loss ")
    text = f"Expected {kind}: {mean}"
    seeds = len(recommendation.verdict.seeds)
    if recommendation.interval is not None:
        # A score is minus the loss.
        ends = (
            recommendation.interval
            if recommendation.has_classes
            else recommendation.interval.negated()
        )
        interval = between(ends, recommendation.has_classes)
        text += f" (mean over {seeds} seeds, 95 % interval {interval})"
    else:
        text += " (one seed)"
    if recommendation.over_baseline is not None:
        gain = number_text(recommendation.over_baseline.mean, recommendation.has_classes, sign=True)
        unit = " points" if recommendation.has_classes else " in loss"
        text += f", {gain}{unit} against FedAvg"
        if recommendation.settings:
            text += (
                " tuned in the same way" if baseline_tuned else ", whose step size was not tuned"
            )
    if recommendation.recovered is not None:
        share, around = recommendation.recovered
        text += f"; it gains back {100 * share:.0f} % of what failing links cost FedAvg"
        if around is not None:
            text += f" ({100 * around.low:.0f} to {100 * around.high:.0f} %)"
    return text + "."


def _costs(recommendation: Recommendation) -> str:
    costs = recommendation.costs
    parts = [f"{costs.local_steps:,} local steps"]
    if costs.bytes_up is not None and costs.bytes_down is not None:
        parts.append(f"{with_unit(costs.bytes_up)} up, {with_unit(costs.bytes_down)} down")
    if recommendation.server_bytes is not None:
        parts.append(
            f"{costs.models_on_server:,} model{'' if costs.models_on_server == 1 else 's'} on the "
            f"server ({with_unit(recommendation.server_bytes)})"
        )
    if recommendation.device_bytes is not None:
        kept = "nothing" if not costs.models_on_client else with_unit(recommendation.device_bytes)
        parts.append(f"{kept} kept on a device between contacts")
    return f"It costs, for the whole run: {', '.join(parts)}."


def write_advice(advice: Advice, directory: AdviceDirectory, command: str) -> None:
    """Write the page, the pictures and the JSON; the JSON last: then it is done."""
    report = advice.links.report
    plot_links(report.statistics, directory.links_path, report.name)
    comparison = directory.comparison
    plot_comparison(advice.comparison, comparison.plot_path, report.name, deployable_only=True)
    recommendation = advice.recommendation
    groups = group_runs(load_runs(find_runs([comparison.path])))
    page = render_page(
        "advice.html.j2",
        f"What to run on {report.name}",
        [group_section(k, group, len(groups)) for k, group in enumerate(groups)],
        answer=answer_lines(advice),
        recommendation=recommendation,
        about=None if recommendation is None else _summary(advice, recommendation.algorithm),
        view=None if recommendation is None else VIEWS[recommendation.view],
        scope=scope_of_links(advice),
        sentences={SUBJECTS.get(k, k): v for k, v in report.sentences.items()},
        links_picture=embedded_figure(link_figure(report.statistics, report.name)),
        table=_comparison_table(advice),
        verdict=advice.comparison.verdict(allowed=advice.request.constraints.allows).sentence,
        alternatives=_alternatives_table(advice),
        settings=_settings_table(advice),
        excluded=advice.excluded,
        limits=advice.request.constraints.described(),
        schedule=advice.schedule,
        tried=_settings_tried(advice),
        compared=_algorithms_compared(advice),
        minutes=advice.seconds / 60,
        budget=advice.request.minutes,
        words=WORDS,
        commands=commands_after(advice, directory),
        command=command,
        remarks=remarks(advice),
    )
    write_atomically(directory.page_path, page)
    content = {
        "recommendation": None if recommendation is None else recommendation.as_dict(),
        "answer": answer_lines(advice),
        "remarks": remarks(advice),
        "links": report.as_dict(),
        "settings": {name: dict(table) for name, table in advice.settings.items()},
        "excluded": dict(advice.excluded),
        "comparison": advice.comparison.as_dict(),
        "seconds": advice.seconds,
        "command": command,
    }
    write_atomically(directory.json_path, json.dumps(content, indent=2, default=str) + "\n")
    directory.seal()


def scope_of_links(advice: Advice) -> str:
    """Which links are described, and which of them the runs have."""
    statistics, rounds = advice.links.report.statistics, advice.schedule.rounds
    devices = f"{statistics.clients:,} devices"
    links = advice.request.config().links
    if links["name"] != "trace":
        return f"These are the links of {devices} over {statistics.rounds:,} rounds."
    recorded = trace_extent(links["file"], "links.file")[0]
    which = devices
    if recorded > statistics.clients:
        which = f"the first {statistics.clients:,} of its {recorded:,} devices, which are simulated"
    length = recorded_rounds(links["file"], links["round_seconds"], "links.file")
    replayed = "runs replay all of it"
    if rounds < length:
        replayed = f"runs replay its first {rounds:,} rounds"
    elif rounds > length:
        replayed = f"runs have {rounds:,}: then it starts again from its beginning"
    return f"The log is described for {which}, over {statistics.rounds:,} rounds; {replayed}."


def commands_after(advice: Advice, directory: AdviceDirectory) -> list[tuple[str, str]]:
    """What to do next: a command and what it does."""
    recommended = shell_quoted(directory.recommended_path)
    of_recommendation = [
        (f"fedpbc run {recommended}", "one run of the recommendation, with every evaluation"),
        (
            f"fedpbc fleet init FOLDER --host NAME --config {recommended}",
            "the files of a real fleet with this algorithm and its settings",
        ),
    ]
    return [
        *(of_recommendation if advice.recommendation is not None else ()),
        (
            f"fedpbc report {shell_quoted(directory.comparison.path)}",
            "the comparison's own page, with every view and all charts",
        ),
    ]


def remarks(advice: Advice) -> list[str]:
    """What would change the answer, besides what the recommendation itself says."""
    lines = list(advice.recommendation.changes) if advice.recommendation is not None else []
    statistics = advice.links.report.statistics
    if statistics.stationary is False:
        lines.append(
            "Other links: these change over time, so a log of another period may favour another "
            "algorithm; advise again when a new log is there."
        )
    elif statistics.stationary is None and not statistics.constant:
        lines.append("Other links: these rounds are too few to tell whether the links change.")
    links = advice.request.values.get("links")
    if isinstance(links, Mapping) and links.get("name") == "trace":
        recorded = trace_extent(links["file"], "links.file")[0]
        if recorded > statistics.clients:
            lines.append(
                f"More devices: {statistics.clients:,} of the {recorded:,} in the log were "
                "simulated; --clients takes more, if the data suffices for them."
            )
    tried = {*advice.excluded, *advice.comparison.labels}
    if advice.tuning is not None:
        tried |= {*advice.schedule.algorithms}
    if left_out := [name for name in advice.links.costs if name not in tried]:
        lines.append(f"A larger budget: there was no time for {listed(left_out, len(left_out))}.")
    if not advice.schedule.complete:
        lines.append(_affordable_text(advice))
    if not advice.schedule.ceiling:
        lines.append(
            "A larger budget: there was no time to train with every link up, so what failing links "
            "cost FedAvg, and what is gained back of it, was not measured."
        )
    if advice.tuning is not None and advice.recommendation is not None:
        for tuned in advice.tuning.entries:
            edge = tuned.at_edge()
            if tuned.label == advice.recommendation.algorithm and edge is not None:
                lines.append(
                    f"Other step sizes: the chosen η_0 is the {edge} that was tried; 'fedpbc tune' "
                    "with --space tries others."
                )
    lines.append("Another model or other data: advice holds for the task that it was made with.")
    return lines


def _affordable_text(advice: Advice) -> str:
    """How far the budget went: what was tuned, and what was compared."""
    compared = _algorithms_compared(advice)
    if advice.tuning is None:
        settings = "the settings given" if advice.request.tuned else "their default settings"
        what = f"to compare {compared} algorithms with {settings}"
    else:
        tried = _counted(_settings_tried(advice), "setting")
        what = f"for {len(advice.schedule.algorithms)} algorithms with {tried} each, and to compare"
        what += f" {compared} of them"
    seeds = _counted(len(advice.comparison.as_dict()["seeds"]), "seed")
    minutes = _counted(advice.request.minutes, "minute")
    return f"A larger budget: within {minutes} there was time {what} over {seeds}."


def _algorithms_compared(advice: Advice) -> int:
    return sum(not is_ceiling(name) for name in advice.comparison.labels)


def _settings_tried(advice: Advice) -> int:
    """The most settings of an algorithm; 0 if nothing was tuned."""
    entries = [] if advice.tuning is None else advice.tuning.entries
    return max((len(tuned.trials) for tuned in entries), default=0)


def _counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def _summary(advice: Advice, label: str) -> str:
    if is_ceiling(label):
        return "FedAvg with every link up."
    return find_algorithm(advice.request.algorithm_of(label)).summary()


def _comparison_table(advice: Advice) -> PageTable:
    paired, recommendation = advice.paired(), advice.recommendation
    rows = []
    for row, cells in zip(paired.rows, paired_rows(advice.comparison, paired), strict=True):
        (name, _), (view, _), *numbers = cells
        run = recommendation is not None and recommendation.algorithm == row.name
        tags = [("best", "recommended")] if run else []
        texts = [TableCell(name, tags=tags, kind="text"), TableCell(view, kind="text")]
        rows.append([*texts, *(TableCell(*number) for number in numbers)])
    label = "Views to deploy, compared with the same seeds"
    return PageTable("", paired_headings(paired), rows, notes=paired_notes(paired), label=label)


def _alternatives_table(advice: Advice) -> PageTable | None:
    recommendation = advice.recommendation
    if recommendation is None or not recommendation.alternatives:
        return None
    rows = [
        [
            TableCell(each.limit, kind="text"),
            TableCell(each.algorithm, kind="text"),
            TableCell(each.view, kind="text"),
            TableCell(score_text(each.mean, recommendation.has_classes)),
            TableCell(number_text(-each.loses, recommendation.has_classes, sign=True)),
        ]
        for each in recommendation.alternatives
    ]
    head = ["if your fleet allows only", "run", "view", "expected", "against the best"]
    return PageTable("", head, rows, label="If your fleet allows less")


def _settings_table(advice: Advice) -> PageTable:
    scores: dict[str, str] = {}
    if advice.tuning is not None:
        for tuned in advice.tuning.entries:
            best = tuned.best
            if best is not None and best.score is not None:
                scores[tuned.label] = score_text(best.score.value, advice.tuning.has_classes)
    rows = [
        [
            TableCell(name, kind="text"),
            TableCell(settings_text(settings) or "default", kind="text"),
            TableCell(scores.get(name, "–")),
            TableCell(_summary(advice, name), kind="text prose"),
        ]
        for name, settings in advice.settings.items()
        # Untuned, others have only the default settings, which nobody used.
        if name in scores or name in advice.comparison.labels
    ]
    head = ["algorithm", "settings", "on held-out samples", "what it does"]
    return PageTable("", head, rows, label="Settings of each algorithm")
