"""Figure 2: what FedAvg converges to when one of two links gets better.

The targets of two clients are 0 and 100, so the optimum is 50. The first client is heard with
probability p₁ = 0.5, the second with p₂. The curve is Proposition 1, 150p₂/(p₂+1). The points are
simulated: the mean of x over the rounds, with three standard errors.

A round moves a client nearly all the way to its target (η = 0.9, five steps: 1e-5 of the distance
is left), so x^t depends on x^(t−1) only if nobody was heard. Such stretches are short compared with
a batch of rounds: batch means are practically independent, and the standard error is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.sweep import GridProgress
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult, ProgressRow
from fedpbc.paper.grid import progress_display
from fedpbc.paper.request import (
    algorithm_options,
    check_settings,
    requested_algorithms,
    requested_rounds,
    requested_seeds,
)
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import write_figure
from fedpbc.report.style import style_of
from fedpbc.simulation.views import paper_view
from fedpbc.tasks import LocalTraining, Quadratic
from fedpbc.theory import fedavg_limit

__all__ = ["OPTIONS", "Estimate", "run", "simulate_trajectory"]

OPTIONS = ("algorithms", "seeds", "rounds")
TARGETS = (0.0, 100.0)
P1 = 0.5
P2 = tuple(k / 10 for k in range(11))
TRAINING = LocalTraining(local_steps=5, learning_rate=0.9, decay=False)
BURN_IN = 100
"""Rounds at the start that are left out: after them x⁰ = 0 is forgotten, to 2^−100."""
BATCH = 50
ROUNDS, QUICK_ROUNDS = 1000, 500


@dataclass(frozen=True)
class Estimate:
    """The mean of x over the rounds, and its standard error from batches of rounds."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, trajectories: Sequence[NDArray[np.float64]]) -> Estimate:
        """Estimate from one trajectory of x for each seed."""
        batches = np.concatenate(
            [x[: len(x) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1) for x in trajectories]
        )
        error = batches.std(ddof=1) / math.sqrt(len(batches))
        return cls(float(batches.mean()), float(error))


Estimates = Mapping[tuple[str, float], Mapping[str, Estimate]]
"""By algorithm and p₂, then by view."""


def simulate_trajectory(
    algorithm: dict[str, Any], p2: float, seed: int, rounds: int, engine: str = "auto"
) -> dict[str, NDArray[np.float64]]:
    """x in every round after the first :data:`BURN_IN`, in each view of the algorithm."""
    task = Quadratic([[target] for target in TARGETS], training=TRAINING, seed=seed)
    client_models = find_algorithm(algorithm["name"]).client_models
    config = Config.from_dict(
        {
            "task": task,
            "algorithm": algorithm,
            "links": {"name": "bernoulli", "p": [P1, p2]},
            "rounds": rounds,
            "seed": seed,
            # The clients' models are available only in rounds that are evaluated.
            "evaluate_every": 1 if client_models else rounds,
            "views": ["server", "mean"],
            "engine": engine,
        }
    )
    simulation = build_experiment(config).simulation
    trajectory: dict[str, list[float]] = {view: [] for view in simulation.views}
    with closing(simulation):
        for t, _ in enumerate(simulation.steps()):
            if t >= BURN_IN:
                for view, model in simulation.view_models().items():
                    trajectory[view].append(float(model))
    return {view: np.array(values) for view, values in trajectory.items()}


def run(request: ExperimentRequest) -> ExperimentResult:
    """Simulate every algorithm at eleven p₂, and draw it over Proposition 1."""
    check_settings("fig2", request, ("engine", "plugins", "algorithms"))
    algorithms = requested_algorithms(request, ("fedavg", "fedpbc"))
    seeds = requested_seeds(request, quick=(0,))
    rounds = requested_rounds(
        request,
        QUICK_ROUNDS if request.quick else ROUNDS,
        BURN_IN + 2 * BATCH,
        f": the first {BURN_IN} are left out, and two batches of {BATCH} are needed",
    )
    estimates = simulate_all(request, algorithms, seeds, rounds)
    points = [
        {
            "p2": p2,
            "formula": round(float(fedavg_limit([P1, p2], TARGETS)), 12),
            "simulated": {
                name: {view: vars(e) for view, e in estimates[name, p2].items()}
                for name in algorithms
            },
        }
        for p2 in P2
    ]
    return write_figure(
        "fig2",
        request,
        size=(5.2, 3.6),
        draw=lambda figure: draw(figure, algorithms, estimates),
        table=numbers_table(algorithms, estimates, rounds, len(seeds)),
        numbers={
            "settings": {
                "targets": list(TARGETS),
                "p1": P1,
                "links": "bernoulli",
                "rounds": rounds,
                "seeds": seeds,
                "seed_of_a_point": f"seed * {len(P2)} + 10 * p2",
                "left_out": BURN_IN,
                "batch": BATCH,
                "local_steps": TRAINING.local_steps,
                "learning_rate": TRAINING.learning_rate,
            },
            "points": points,
        },
        quick=f"{rounds:,} rounds of {len(seeds)} seed{'s' * (len(seeds) > 1)} a point",
    )


def simulate_all(
    request: ExperimentRequest, algorithms: Sequence[str], seeds: Sequence[int], rounds: int
) -> Estimates:
    """Simulate every algorithm, p₂ and seed."""
    engine = request.settings.get("engine", "auto")
    keys = [(name, p2) for name in algorithms for p2 in P2]
    labels = [f"{name}, p₂ = {p2}, seed {seed}" for name, p2 in keys for seed in seeds]
    estimates: dict[tuple[str, float], dict[str, Estimate]] = {}
    done = 0
    with progress_display(request, [ProgressRow(label, rounds) for label in labels]) as show:
        for name, p2 in keys:
            trajectories = []
            for seed in seeds:
                # Every point has links of its own, so that their errors are independent.
                point_seed = seed * len(P2) + P2.index(p2)
                options = algorithm_options(request, name)
                trajectories.append(simulate_trajectory(options, p2, point_seed, rounds, engine))
                show(GridProgress(done, rounds))
                done += 1
            estimates[name, p2] = {
                view: Estimate.of([x[view] for x in trajectories]) for view in trajectories[0]
            }
    return estimates


def numbers_table(
    algorithms: Sequence[str], estimates: Estimates, rounds: int, seeds: int
) -> ResultTable:
    """Formula and simulation side by side."""
    columns = [(name, view) for name in algorithms for view in estimates[name, P2[0]]]
    rows, worst = [], 0.0
    for p2 in P2:
        formula = float(fedavg_limit([P1, p2], TARGETS))
        row = [f"{p2:.1f}", f"{formula:.2f}"]
        for name, view in columns:
            estimate = estimates[name, p2][view]
            row.append(f"{estimate.mean:.2f} ± {estimate.standard_error:.2f}")
            if name == "fedavg" and estimate.standard_error:
                worst = max(worst, abs(estimate.mean - formula) / estimate.standard_error)
        rows.append(row)
    over = f"{rounds - BURN_IN:,} rounds of {seeds} seed{'s' * (seeds > 1)}"
    notes = [f"mean of x ± one standard error, from batches of {BATCH} rounds; over {over}."]
    if "fedavg" in algorithms:
        notes.append(f"fedavg is at most {worst:.1f} standard errors from Proposition 1.")
    if "fedpbc" in algorithms:
        notes.append(
            "fedpbc (mean), the mean of both clients' models, is at the optimum 50 for every p₂. "
            "fedpbc (server) is not: a round here takes clients all the way to their own targets."
        )
    head = ["p₂", "150p₂/(p₂+1)", *(f"{name} ({view})" for name, view in columns)]
    return ResultTable("The numbers", head, rows, notes, sections=0)


def draw(figure: Figure, algorithms: Sequence[str], estimates: Estimates) -> None:
    """Draw the curve, the points and the optimum."""
    axes = figure.subplots()
    optimum = float(np.mean(TARGETS))
    grid = np.linspace(0, 1, 201)
    axes.plot(
        grid,
        [fedavg_limit([P1, p2], TARGETS) for p2 in grid],
        color="#555555",
        label="fedavg, Proposition 1: $150p_2/(p_2+1)$",
    )
    axes.axhline(optimum, color="#0072B2", linestyle=(0, (6, 3)), linewidth=1.2)
    axes.annotate("global minimizer", (0.01, optimum), (0, 4), textcoords="offset points", size=8.5)
    axes.plot([P1, P1], [0, optimum], color="#888888", linestyle=":", linewidth=1)
    for name in algorithms:
        view = paper_view(tuple(estimates[name, P2[0]]))
        points = [estimates[name, p2][view] for p2 in P2]
        model = "mean of all clients" if view == "mean" else "server's model"
        colour, _, marker = style_of(name)
        axes.errorbar(
            P2,
            [point.mean for point in points],
            yerr=[3 * point.standard_error for point in points],
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=4.5,
            markeredgecolor="black",
            markeredgewidth=0.5,
            capsize=3,
            linewidth=1.2,
            label=f"{name}, simulated ({model})",
            zorder=3,
        )
    bias = float(fedavg_limit([P1, 1.0], TARGETS))
    arrow = {"arrowstyle": "<->", "linewidth": 1.0}
    axes.annotate("", (1.035, optimum), (1.035, bias), arrowprops=arrow)
    axes.text(1.05, (optimum + bias) / 2, "bias", va="center")
    axes.set_xlim(-0.02, 1.1)
    axes.set_ylim(-2, 96)
    axes.set_xticks(P2)
    axes.set_yticks([0, 25, 50, 75])
    axes.set_xlabel("$p_2$, the second client's probability of being heard ($p_1 = 0.5$)")
    axes.set_ylabel("expected output")
    axes.legend(loc="upper left", borderaxespad=0, title="bars: ± 3 standard errors")
