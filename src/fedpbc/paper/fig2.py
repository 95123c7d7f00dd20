"""Figure 2: what FedAvg converges to when one of two links gets better.

Two clients want 0 and 100, so 50 is best. The first gets through with p₁ = 0.5, the second with p₂.
The curve is Proposition 1, 150p₂/(p₂+1). The points are runs of the simulator: the mean of x over
the rounds, with three standard errors.

A round moves a client nearly all the way to its target (η = 0.9, five steps: 1e-5 of the way is
left), so x^t depends on x^(t−1) only where nobody got through. Those stretches are short beside a
batch of rounds, so the batches' means are as good as independent, and the standard error is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import MofNCompleteColumn

from fedpbc.algorithms import find_algorithm
from fedpbc.cli.display import Display
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.configuration import Config
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.request import (
    algorithms_of,
    check_settings,
    options_of_algorithm,
    rounds_of,
    seeds_of,
)
from fedpbc.paper.style import look_of, write_experiment
from fedpbc.report.page import PageTable
from fedpbc.simulation.views import paper_view
from fedpbc.tasks import LocalTraining, Quadratic
from fedpbc.theory import fedavg_limit

__all__ = ["OPTIONS", "Point", "run", "simulated"]

OPTIONS = ("algorithms", "seeds", "rounds")
TARGETS = (0.0, 100.0)
P1 = 0.5
P2 = tuple(k / 10 for k in range(11))
TRAINING = LocalTraining(local_steps=5, learning_rate=0.9, decay=False)
FORGOTTEN = 100
"""Rounds at the start that are left out: until then x⁰ = 0 is forgotten, to 2^−100."""
BATCH = 50
ROUNDS, SEEDS = 1000, (0, 1, 2)
QUICK_ROUNDS, QUICK_SEEDS = 500, (0,)


@dataclass(frozen=True)
class Point:
    """The mean of x over the rounds, and its standard error from batches of rounds.

    Example:
        >>> Point.of([np.repeat([40.0, 60.0], BATCH)])
        Point(mean=50.0, standard_error=10.0)
    """

    mean: float
    standard_error: float

    @classmethod
    def of(cls, trajectories: Sequence[NDArray[np.float64]]) -> Point:
        """From one trajectory of x a seed."""
        batches = np.concatenate(
            [x[: len(x) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1) for x in trajectories]
        )
        error = batches.std(ddof=1) / math.sqrt(len(batches))
        return cls(float(batches.mean()), float(error))


def simulated(
    algorithm: dict[str, Any], p2: float, seed: int, rounds: int, engine: str = "auto"
) -> dict[str, NDArray[np.float64]]:
    """x of every round but the first :data:`FORGOTTEN`, in each view that the algorithm has.

    Example:
        >>> found = simulated({"name": "fedavg"}, p2=0.0, seed=0, rounds=200)
        >>> float(found["server"].mean())
        0.0
    """
    task = Quadratic([[target] for target in TARGETS], training=TRAINING, seed=seed)
    client_models = find_algorithm(algorithm["name"]).client_models
    config = Config.from_dict(
        {
            "task": task,
            "algorithm": algorithm,
            "links": {"name": "bernoulli", "p": [P1, p2]},
            "rounds": rounds,
            "seed": seed,
            # All clients' models are at hand only where they are evaluated.
            "evaluate_every": 1 if client_models else rounds,
            "views": ["server", "mean"],
            "engine": engine,
        }
    )
    simulation = build_experiment(config).simulation
    found: dict[str, list[float]] = {view: [] for view in simulation.views}
    with closing(simulation):
        for t, _ in enumerate(simulation.steps()):
            if t >= FORGOTTEN:
                for view, model in simulation.view_models().items():
                    found[view].append(float(model))
    return {view: np.array(values) for view, values in found.items()}


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Simulate every algorithm at eleven p₂, and draw it over Proposition 1.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> wanted = ExperimentRequest(out=Path(tempfile.mkdtemp()), algorithms=["fedavg"],
        ...                 seeds=[0], rounds=200)
        >>> run(wanted).numbers["points"][5]["formula"]
        50.0
    """
    check_settings("fig2", wanted, ("engine", "plugins", "algorithms"))
    algorithms = algorithms_of(wanted, ("fedavg", "fedpbc"))
    seeds = seeds_of(wanted, QUICK_SEEDS if wanted.quick else SEEDS)
    why = f": the first {FORGOTTEN} are left out, and then there must be batches of {BATCH}"
    rounds = rounds_of(wanted, QUICK_ROUNDS if wanted.quick else ROUNDS, FORGOTTEN + 2 * BATCH, why)
    engine = wanted.settings.get("engine", "auto")
    found: dict[tuple[str, float], dict[str, Point]] = {}
    with Display(MofNCompleteColumn(), quiet=wanted.quiet) as display:
        total = len(algorithms) * len(P2) * len(seeds)
        bar = display.progress.add_task("simulations", total=total, note="")
        for name in algorithms:
            for k, p2 in enumerate(P2):
                paths = []
                for seed in seeds:
                    options = options_of_algorithm(wanted, name)
                    # Links of its own for every point: their errors are independent.
                    own = seed * len(P2) + k
                    paths.append(simulated(options, p2, own, rounds, engine))
                    display.progress.update(bar, advance=1, note=f"{name}, p₂ = {p2}")
                found[name, p2] = {view: Point.of([x[view] for x in paths]) for view in paths[0]}
    points = [
        {
            "p2": p2,
            "formula": round(float(fedavg_limit([P1, p2], TARGETS)), 12),
            "simulated": {
                name: {view: vars(point) for view, point in found[name, p2].items()}
                for name in algorithms
            },
        }
        for p2 in P2
    ]
    return write_experiment(
        "fig2",
        wanted,
        size=(5.2, 3.6),
        draw=lambda figure: draw(figure, algorithms, found),
        table=table(algorithms, found, rounds, len(seeds)),
        numbers={
            "settings": {
                "targets": list(TARGETS),
                "p1": P1,
                "links": "bernoulli",
                "rounds": rounds,
                "seeds": seeds,
                "seed_of_a_point": f"seed * {len(P2)} + 10 * p2",
                "left_out": FORGOTTEN,
                "batch": BATCH,
                "local_steps": TRAINING.local_steps,
                "learning_rate": TRAINING.learning_rate,
            },
            "points": points,
        },
        quick=f"{rounds:,} rounds of {len(seeds)} seed{'s' * (len(seeds) > 1)} a point",
    )


def table(
    algorithms: Sequence[str], found: dict[tuple[str, float], dict[str, Point]], rounds: int, s: int
) -> PageTable:
    """Formula and simulation side by side."""
    shown = [(name, view) for name in algorithms for view in found[name, P2[0]]]
    heads = ["p₂", "150p₂/(p₂+1)", *(f"{name} ({view})" for name, view in shown)]
    rows = [heads]
    worst = 0.0
    for p2 in P2:
        formula = float(fedavg_limit([P1, p2], TARGETS))
        row = [f"{p2:.1f}", f"{formula:.2f}"]
        for name, view in shown:
            point = found[name, p2][view]
            row.append(f"{point.mean:.2f} ± {point.standard_error:.2f}")
            if name == "fedavg" and point.standard_error:
                worst = max(worst, abs(point.mean - formula) / point.standard_error)
        rows.append(row)
    over = f"{rounds - FORGOTTEN:,} rounds of {s} seed{'s' * (s > 1)}"
    notes = [f"mean of x ± one standard error, from batches of {BATCH} rounds; over {over}."]
    if "fedavg" in algorithms:
        notes.append(f"fedavg is at most {worst:.1f} standard errors from Proposition 1.")
    if "fedpbc" in algorithms:
        notes.append(
            "fedpbc (mean), the mean of both clients' models, is at the optimum 50 whatever p₂. "
            "fedpbc (server) is not: a round here takes clients all the way to their own targets."
        )
    return PageTable("The numbers", rows[0], rows[1:], notes)


def draw(
    figure: Figure, algorithms: Sequence[str], found: dict[tuple[str, float], dict[str, Point]]
) -> None:
    """The curve, the points, and where everybody would be best off."""
    axes = figure.subplots()
    best = float(np.mean(TARGETS))
    fine = np.linspace(0, 1, 201)
    axes.plot(
        fine,
        [fedavg_limit([P1, p2], TARGETS) for p2 in fine],
        color="#555555",
        label="fedavg, Proposition 1: $150p_2/(p_2+1)$",
    )
    axes.axhline(best, color="#0072B2", linestyle=(0, (6, 3)), linewidth=1.2)
    axes.annotate("global minimizer", (0.01, best), (0, 4), textcoords="offset points", size=8.5)
    axes.plot([P1, P1], [0, best], color="#888888", linestyle=":", linewidth=1)
    for name in algorithms:
        view = paper_view(tuple(found[name, P2[0]]))
        marks = [found[name, p2][view] for p2 in P2]
        whose = "mean of all clients" if view == "mean" else "server's model"
        look = {**look_of(name), "linestyle": "none"}
        axes.errorbar(
            P2,
            [point.mean for point in marks],
            yerr=[3 * point.standard_error for point in marks],
            **look,
            markersize=4.5,
            markeredgecolor="black",
            markeredgewidth=0.5,
            capsize=3,
            linewidth=1.2,
            label=f"{name}, simulated ({whose})",
            zorder=3,
        )
    bias = float(fedavg_limit([P1, 1.0], TARGETS))
    arrow = {"arrowstyle": "<->", "linewidth": 1.0}
    axes.annotate("", (1.035, best), (1.035, bias), arrowprops=arrow)
    axes.text(1.05, (best + bias) / 2, "bias", va="center")
    axes.set_xlim(-0.02, 1.1)
    axes.set_ylim(-2, 96)
    axes.set_xticks(P2)
    axes.set_yticks([0, 25, 50, 75])
    axes.set_xlabel("$p_2$, the second client's chance of getting through ($p_1 = 0.5$)")
    axes.set_ylabel("expected output")
    axes.legend(loc="upper left", borderaxespad=0, title="bars: ± 3 standard errors")
