"""A search as a table and a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.tuning.choice import write_choice
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.experiments.tuning.result import Score, TrialResult, TunedEntry, TuningResult
from fedpbc.experiments.tuning.search_space import LEARNING_RATE
from fedpbc.report.comparison_table import CEILING_NOTE, markdown, marked_label
from fedpbc.report.text_table import TextTable
from fedpbc.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["tuning_figure", "tuning_notes", "tuning_table", "write_tuning", "written_files"]

SHORT_NAMES = {"train.learning_rate": "η_0", "train.global_learning_rate": "η_g"}
COLUMNS = 4


def write_tuning(directory: TuningDirectory, result: TuningResult) -> None:
    """Write the choice, table.md, tuning.png and, last, tuning.json: then the search is done."""
    write_choice(directory, result)
    rows = [tuning_cells(tuned, result.has_classes) for tuned in result.entries]
    table = markdown(tuning_head(result), rows)
    notes = "".join(f"- {note}\n" for note in tuning_notes(result))
    write_atomically(directory.table_path, f"{table}\n\n{notes}")
    figure = tuning_figure(result)
    write_atomically(directory.plot_path, partial(figure.savefig, format="png", dpi=130))
    write_atomically(directory.json_path, json.dumps(result.as_dict(), indent=2) + "\n")
    directory.seal(result)


def tuning_head(result: TuningResult) -> list[str]:
    """Return the column headings."""
    score = "validation %" if result.has_classes else "loss"
    return ["algorithm", "chosen", "view", score, "default", "tried", "diverged"]


FOLDED = {"algorithm": 8, "chosen": 16}
"""Columns that fold in a narrow terminal, and the characters that they keep."""
DISPENSABLE = {"default": 1, "tried": 2, "diverged": 3}
"""Columns that a narrow terminal does not show, the last of them first."""


def tuning_table(result: TuningResult) -> TextTable:
    """Return the choice for the terminal; the best row is bold."""
    table = TextTable()
    for column in tuning_head(result):
        table.column(
            column.replace(" ", "\n"),
            right=column not in {"algorithm", "chosen", "view"},
            folds=FOLDED.get(column, 0),
            rank=DISPENSABLE.get(column, 0),
        )
    scores = {
        tuned.label: tuned.best.score.value
        for tuned in result.entries
        if tuned.best is not None and tuned.best.score is not None and not is_ceiling(tuned.label)
    }
    best = max(scores, key=lambda label: scores[label], default=None)
    for tuned in result.entries:
        cells = tuning_cells(tuned, result.has_classes)
        table.row(*cells, style="bold" if tuned.label == best else "")
    return table


def tuning_cells(tuned: TunedEntry, has_classes: bool) -> list[str]:
    """Return an algorithm's row."""
    best, default = tuned.best, tuned.trials[0]
    name = marked_label(tuned.label, find_algorithm(tuned.algorithm).memory_aided)
    counts = [str(len(tuned.trials)), str(tuned.diverged)]
    if best is None or best.score is None:
        return [name, "none: all diverged", "–", "–", "–", *counts]
    return [
        name,
        describe(best, default),
        best.score.view,
        tuning_score_text(best.score, has_classes),
        "chosen" if default is best else _default_text(default, best.rounds, has_classes),
        *counts,
    ]


def describe(trial: TrialResult, default: TrialResult) -> str:
    """Return the step sizes, and the options that are not the default's.

    Example:
        >>> default = TrialResult({"train.learning_rate": 0.1, "algorithm.cutoff": 50}, None, 0)
        >>> describe(TrialResult({**default.settings, "algorithm.cutoff": 5}, None, 0), default)
        'η_0 0.1, cutoff 5'
    """
    return settings_text(
        {
            key: value
            for key, value in trial.settings.items()
            if key == LEARNING_RATE or value != default.settings[key]
        }
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings by dotted key in words.

    Example:
        >>> settings_text({"train.learning_rate": 0.2, "algorithm.cutoff": 5})
        'η_0 0.2, cutoff 5'
    """
    return ", ".join(
        f"{SHORT_NAMES.get(key, key.partition('.')[2])} "
        + (f"{value:g}" if isinstance(value, float) else str(value))
        for key, value in settings.items()
    )


def tuning_score_text(score: Score, has_classes: bool) -> str:
    """Return a score as people read it: an accuracy in per cent, or a loss."""
    if not has_classes:
        return f"{-score.value:.4g}"
    deviation = "" if score.deviation is None else f" ± {100 * score.deviation:.1f}"
    return f"{100 * score.value:.1f}{deviation}"


def _default_text(default: TrialResult, rounds: int, has_classes: bool) -> str:
    if default.score is None:
        return "diverged"
    text = tuning_score_text(default.score, has_classes)
    return text if default.rounds == rounds else f"{text} at {default.rounds}"


def tuning_notes(result: TuningResult) -> list[str]:
    """Return what a reader must know."""
    plan = result.plan
    halving = plan.halving(result.entries[0].label)
    listed = ", ".join(
        f"{size} for {rung:,}" for size, rung in zip(halving.sizes, halving.rungs, strict=True)
    )
    seeds = "seed" if len(plan.seeds) == 1 else "seeds"
    held_out = "the objective itself: quadratics have no samples"
    if plan.validation is not None:
        held_out = (
            f"{100 * plan.validation:g} % of each client's training samples, kept out of training; "
            "the test data was not used"
        )
    notes = [
        f"successive halving: {listed} rounds; {result.rounds_run:,} rounds in all, {seeds} "
        f"{', '.join(map(str, plan.seeds))}; scored on {held_out}.",
        "each score: the candidate's best view that a server could deploy, the mean of the "
        "evaluations in the last fifth of the rounds, 100 at most.",
    ]
    if any(is_ceiling(tuned.label) for tuned in result.entries):
        notes.append(CEILING_NOTE)
    for tuned in result.entries:
        if tuned.all_equal:
            notes.append(
                f"{tuned.label}: all candidates have the same score, so the first was chosen; more "
                "rounds or more samples may tell them apart."
            )
        elif (edge := tuned.at_edge()) is not None and tuned.best is not None:
            rate = tuned.best.settings[LEARNING_RATE]
            notes.append(
                f"{tuned.label}: the chosen η_0 = {rate:g} is the {edge} that was tried; "
                "others can be tried with --space learning_rate=…"
            )
    return notes


def tuning_figure(result: TuningResult) -> Figure:
    """Draw every candidate's score over η_0, one panel per algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    count = len(result.entries)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(6.0, 3.3 * columns), 0.7 + 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axes, tuned in zip(panels, result.entries, strict=False):
        _draw_trials(axes, tuned, result.has_classes)
    for axes in panels[count:]:
        axes.set_visible(False)
    score = "validation accuracy, %" if result.has_classes else "loss"
    figure.supylabel(score, fontsize=10)
    figure.supxlabel("η_0; the larger the dot, the more rounds; ring: chosen", fontsize=10)
    return figure


def _draw_trials(axes: Axes, tuned: TunedEntry, has_classes: bool) -> None:
    scale = 100.0 if has_classes else -1.0
    rungs = sorted({trial.rounds for trial in tuned.trials})
    shades = {rung: _shade(k, len(rungs)) for k, rung in enumerate(rungs)}
    scored = [trial for trial in tuned.trials if trial.score is not None]
    for rung in rungs:
        points = [
            (trial.settings[LEARNING_RATE], scale * trial.score.value)
            for trial in scored
            if trial.rounds == rung and trial.score is not None
        ]
        size = 18 + 40 * rungs.index(rung)
        rates, values = [rate for rate, _ in points], [value for _, value in points]
        axes.scatter(rates, values, s=size, color=shades[rung], zorder=2)
    if tuned.best is not None and tuned.best.score is not None:
        axes.scatter(
            [tuned.best.settings[LEARNING_RATE]],
            [scale * tuned.best.score.value],
            s=260,
            facecolors="none",
            edgecolors="#d55e00",
            linewidths=1.8,
            zorder=3,
        )
    _mark_diverged(axes, [t.settings[LEARNING_RATE] for t in tuned.trials if t.score is None])
    axes.set_xscale("log")
    rates = sorted({float(trial.settings[LEARNING_RATE]) for trial in tuned.trials})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45, fontsize=8)
    axes.minorticks_off()
    axes.set_title(tuned.label, fontsize=10, parse_math=False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_diverged(axes: Axes, rates: Sequence[float]) -> None:
    """Crosses at the lower edge, where no score could be."""
    if rates:
        axes.scatter(
            rates,
            [0.03] * len(rates),
            marker="x",
            s=24,
            color="#555555",
            transform=axes.get_xaxis_transform(),
        )


def _shade(position: int, count: int) -> str:
    """Return a grey-safe blue: the longer a candidate ran, the darker."""
    return ["#9ecae1", "#4292c6", "#08306b"][max(0, position + 3 - count)]


def written_files(directory: TuningDirectory) -> list[Path]:
    """Return what a search has written, for people."""
    return [directory.tuned_path, directory.table_path, directory.plot_path, directory.json_path]
