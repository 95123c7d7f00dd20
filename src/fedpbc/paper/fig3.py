"""Figure 3: how far the server's model stays from the optimum of a hundred quadratics.

The first half of the clients is heard with probability p₀, the second half with p₁, and the two
halves have different optima. With p₀ = p₁ neither is favoured; otherwise FedAvg converges to the
point that Proposition 1 predicts, and FedPBC close to the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.experiments.comparison import Comparison, Spread
from fedpbc.experiments.configuration import Config
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.grid import ConditionResult, SweepResult, run_planned
from fedpbc.paper.plan import PaperCondition
from fedpbc.paper.quadratics import CLIENTS, DIMENSIONS, draw_targets, pair_of, plan_quadratics
from fedpbc.paper.request import (
    check_settings,
    requested_algorithms,
    requested_rounds,
    requested_seeds,
)
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import write_figure
from fedpbc.report.style import style_of
from fedpbc.storage.scratch import scratch_folder
from fedpbc.theory import fedavg_limit

__all__ = ["OPTIONS", "TRIAL", "run"]

OPTIONS = ("algorithms", "seeds", "rounds", "jobs")
SETTINGS = (
    *("train", "engine", "workers", "ray_address", "device", "evaluate_every", "reported"),
    *("checkpoint_every", "plugins", "algorithms"),
)
ROUNDS, QUICK_ROUNDS = 2500, 1000
FIRST_DRAWN = 50
"""The first round that is drawn, as in the paper."""
TRIAL = {
    (0.5, 0.5): {"fedpbc": 0.0025, "fedavg": 0.0073},
    (0.1, 0.5): {"fedpbc": 0.0155, "fedavg": 0.185},
    (0.3, 0.9): {"fedpbc": 0.0041, "fedavg": 0.139},
}
"""Results of an independent program, written from the paper alone, over the last rounds."""
TRIAL_ROUNDS, LEAST_ROUNDS = 2500, 1000
"""The rounds of that program, and those after which x⁰ is forgotten: fewer are not compared."""


def run(request: ExperimentRequest) -> ExperimentResult:
    """Run the grid, or what is left of it, and draw the figure."""
    check_settings("fig3", request, SETTINGS)
    algorithms = requested_algorithms(request, ("fedavg", "fedpbc"))
    seeds = requested_seeds(request, quick=(0,))
    rounds = requested_rounds(request, QUICK_ROUNDS if request.quick else ROUNDS)
    with scratch_folder() as targets:
        runs = plan_quadratics(request, algorithms, seeds, rounds, targets)
        sweep = run_planned("fig3", request, runs)
    as_in_trial = "train" not in request.settings and rounds >= LEAST_ROUNDS
    rows = distance_rows(sweep, as_in_trial=as_in_trial)
    return write_figure(
        "fig3",
        request,
        size=(7.2, 5.6),
        draw=lambda figure: draw(figure, sweep.comparisons),
        table=distance_table(rows, rounds, len(seeds)),
        sweep=sweep,
        numbers={
            "settings": {
                "clients": CLIENTS,
                "dimensions": DIMENSIONS,
                "rounds": rounds,
                "seeds": seeds,
                "window": window_of(rounds),
                "train": Config.from_dict(runs[0].config).to_dict()["train"],
            },
            "rows": rows,
            "failed": sweep.failed,
        },
        quick=f"{rounds:,} rounds, {len(seeds)} seed{'s' * (len(seeds) > 1)}",
    )


# ---- the distances


def window_of(rounds: int) -> int:
    """Distances are averaged over this many last rounds."""
    return max(1, min(200, rounds // 5))


def views_of(comparison: Comparison, algorithm: str) -> list[str]:
    """The views of an algorithm; none if every seed failed."""
    cells = comparison.of(algorithm)
    return list(cells[0].metrics[-1]["views"]) if cells else []


def final_distances(comparison: Comparison, algorithm: str, view: str) -> list[list[float]]:
    """For each seed, the distances in the last rounds."""
    first = comparison.rounds - window_of(comparison.rounds)
    return [
        [line["views"][view]["distance"] for line in cell.metrics if line["round"] > first]
        for cell in comparison.of(algorithm)
    ]


def predicted_distance(condition: PaperCondition, comparison: Comparison) -> float:
    """The distance of FedAvg's limit by Proposition 1, the mean over seeds."""
    distances = []
    for seed in {cell.seed for cell in comparison.runs}:
        targets = draw_targets(seed)
        limit = fedavg_limit(condition.changes["links"]["p"], targets)
        distances.append(float(np.linalg.norm(limit - targets.mean(axis=0))))
    return fmean(distances)


def distance_rows(sweep: SweepResult, as_in_trial: bool) -> list[dict[str, Any]]:
    """A row for each pair, algorithm and view.

    ``as_in_trial``: the clients trained as in the independent trial, and long enough.
    """
    rows = []
    for condition, comparison in sweep.comparisons:
        p0, p1 = pair_of(condition)
        trial = TRIAL.get((p0, p1), {}) if as_in_trial else {}
        for algorithm in comparison.algorithms:
            for view in views_of(comparison, algorithm):
                distances = final_distances(comparison, algorithm, view)
                is_fedavg = (algorithm, view) == ("fedavg", "server")
                predicted = predicted_distance(condition, comparison) if is_fedavg else None
                rows.append(
                    {
                        "p0": p0,
                        "p1": p1,
                        "algorithm": algorithm,
                        "view": view,
                        "distance": vars(Spread.of([fmean(values) for values in distances])),
                        "largest_at_the_end": max(values[-1] for values in distances),
                        "trial": trial.get(algorithm) if view == "server" else None,
                        "proposition_1": predicted,
                    }
                )
    return rows


def distance_table(rows: Sequence[dict[str, Any]], rounds: int, seeds: int) -> ResultTable:
    """The server's model beside the independent trial, and the mean of all clients."""
    lines, compared = [], any(row["trial"] is not None for row in rows)
    for row in rows:
        if row["view"] not in ("server", "mean"):
            continue
        spread, trial, predicted = row["distance"], row["trial"], row["proposition_1"]
        deviation = f" ± {spread['deviation']:.2g}" if spread["seeds"] > 1 else ""
        if predicted is not None and predicted < 1e-12:
            predicted = 0.0  # A rounding error: the terms of the sum cancel.
        lines.append(
            [
                f"{row['p0']:g}, {row['p1']:g}",
                row["algorithm"],
                row["view"],
                f"{spread['mean']:.3g}{deviation}",
                *([] if not compared else _beside_trial(spread["mean"], trial)),
                "" if predicted is None else f"{predicted:.3g}",
            ]
        )
    columns = ["trial", "difference"] if compared else []
    head = ["p₀, p₁", "algorithm", "view", "‖x−x*‖", *columns, "Prop. 1"]
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    notes = [
        f"the last {window_of(rounds)} of {rounds:,} rounds; {over}.",
        "server: the server's model; mean: the mean of all clients' models, which no server has.",
        "Prop. 1: FedAvg's expected distance.",
    ]
    if compared:
        notes.append(f"trial: an independent program's results, of {TRIAL_ROUNDS:,} rounds.")
    elif rounds < LEAST_ROUNDS:
        notes.append(
            f"not compared with the independent trial: its {TRIAL_ROUNDS:,} rounds have converged, "
            f"fewer than {LEAST_ROUNDS:,} have not."
        )
    return ResultTable("The numbers", head, lines, notes)


def _beside_trial(mean: float, trial: float | None) -> list[str]:
    """The trial's result, and the difference to it."""
    return ["", ""] if trial is None else [f"{trial:g}", f"{100 * (mean / trial - 1):+.0f} %"]


# ---- the figure


def draw(figure: Figure, results: Sequence[ConditionResult]) -> None:
    """Draw a panel for each pair: neither half favoured above, the second half below."""
    panels = figure.subplots(-(-len(results) // 2), 2, sharex=True, sharey=True, squeeze=False)
    # An odd number of pairs leaves the last panel empty.
    for axes, result in zip(panels.flat, results, strict=False):
        draw_panel(axes, *result)
    handles: dict[str, Any] = {}
    for axes in panels.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=2, handlelength=3.2
    )
    for axes in panels[:, 0]:
        axes.set_ylabel("$\\|x_{\\mathrm{PS}} - x^\\star\\|$")
    for axes in panels[-1]:
        axes.set_xlabel("round")


def draw_panel(axes: Axes, condition: PaperCondition, comparison: Comparison) -> None:
    """Draw one pair's curves and bands."""
    first = min(FIRST_DRAWN, condition.rounds // 2)
    lowest, below_axis = 2e-4, list[str]()
    for name in comparison.algorithms:
        views = views_of(comparison, name)
        if not views:
            continue
        colour, _, marker = style_of(name)
        rounds, mean, deviation = _drawn_curve(comparison, name, "server", first)
        axes.fill_between(
            rounds,
            np.maximum(mean - deviation, lowest / 10),
            mean + deviation,
            color=colour,
            alpha=0.25,
            linewidth=0,
        )
        every = max(1, len(rounds) // 6)
        axes.plot(
            rounds,
            mean,
            color=colour,
            marker=marker,
            markevery=(every // 2, every),
            markersize=4.5,
            linewidth=1.1,
            label=f"{name}, server's model",
        )
        if "mean" in views:
            rounds, mean, _ = _drawn_curve(comparison, name, "mean", first)
            axes.plot(
                rounds,
                mean,
                color=colour,
                linestyle=(0, (1, 1.5)),
                linewidth=1.3,
                label=f"{name}, mean of all clients",
            )
            if mean[-1] < lowest:
                below_axis.append(f"{name}, mean of all clients: {mean[-1]:.0e} at the end")
    note = "\n".join(below_axis)
    axes.text(0.98, 0.97, note, transform=axes.transAxes, ha="right", va="top", size=7.5)
    has_fedavg = "fedavg" in comparison.algorithms
    if has_fedavg and (predicted := predicted_distance(condition, comparison)) > lowest:
        axes.axhline(
            predicted,
            color="#555555",
            linestyle=(0, (6, 2, 1, 2)),
            linewidth=1.1,
            label="fedavg, Proposition 1",
        )
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    axes.set_xlim(first, condition.rounds)
    p0, p1 = pair_of(condition)
    sign = "=" if p0 == p1 else r"\neq"
    axes.set_title(f"$p_0 {sign} p_1$: {p0:g}, {p1:g}")
    axes.grid(True, which="major")


def _drawn_curve(
    comparison: Comparison, algorithm: str, view: str, first: int
) -> tuple[NDArray[np.float64], ...]:
    """Rounds from ``first`` on, and mean and deviation over seeds of the distance."""
    curve = np.array(comparison.curve(algorithm, view, "distance"))
    return tuple(curve[:, curve[0] >= first])
