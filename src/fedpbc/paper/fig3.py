"""Figure 3: how far the server's model stays from the optimum of a hundred quadratics.

The first half of the clients gets through with p₀, the second half with p₁, and the halves want to
be in different places. With p₀ = p₁ nobody is favoured; otherwise FedAvg settles where
Proposition 1 says, and FedPBC near the optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.errors import FedpbcError
from fedpbc.experiments.comparison import Spread
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.quadratics import (
    CLIENTS,
    DIMENSIONS,
    PAIRS,
    Pair,
    Run,
    links_of,
    planned,
    run_all,
    targets,
)
from fedpbc.paper.request import algorithms_of, check_settings, rounds_of, seeds_of
from fedpbc.paper.style import look_of, write_experiment
from fedpbc.report.page import PageTable
from fedpbc.theory import fedavg_limit

__all__ = ["OPTIONS", "TRIAL", "Found", "run"]

OPTIONS = ("algorithms", "seeds", "rounds", "jobs")
SETTINGS = (
    *("train", "engine", "workers", "ray_address", "device", "evaluate_every", "reported"),
    *("checkpoint_every", "plugins", "algorithms"),
)
ROUNDS, SEEDS = 2500, (0, 1, 2)
QUICK_ROUNDS, QUICK_SEEDS = 1000, (0,)
SHOWN_FROM = 50
"""The first round that is drawn, as in the paper."""
TRIAL = {
    (0.5, 0.5): {"fedpbc": 0.0025, "fedavg": 0.0073},
    (0.1, 0.5): {"fedpbc": 0.0155, "fedavg": 0.185},
    (0.3, 0.9): {"fedpbc": 0.0041, "fedavg": 0.139},
}
"""What a program of somebody else's, written from the paper alone, found over the last rounds."""


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Run the grid, or what is left of it, and draw it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> wanted = ExperimentRequest(out=Path(tempfile.mkdtemp()), algorithms=["fedavg"],
        ...                 seeds=[0], rounds=5, jobs=1, settings={"train": {"local_steps": 1}})
        >>> made = run(wanted)
        >>> [path.name for path in made.written]
        ['report.html', 'fig3.png', 'fig3.pdf', 'fig3.json']
    """
    check_settings("fig3", wanted, SETTINGS)
    algorithms = algorithms_of(wanted, ("fedavg", "fedpbc"))
    seeds = seeds_of(wanted, QUICK_SEEDS if wanted.quick else SEEDS)
    rounds = rounds_of(wanted, QUICK_ROUNDS if wanted.quick else ROUNDS)
    grid = planned(wanted, algorithms, seeds, rounds)
    train = Config.from_dict(grid[0].cell.config).to_dict()["train"]
    failures = run_all(grid, wanted)
    failed = [
        f"{one.name}: {failure}"
        for one, failure in zip(grid, failures, strict=True)
        if failure is not None
    ]
    if len(failed) == len(grid):
        raise FedpbcError(f"every run failed; the first: {failed[0]}")
    done = [one for one, failure in zip(grid, failures, strict=True) if failure is None]
    found = Found(done, seeds, rounds, as_tried="train" not in wanted.settings)
    return write_experiment(
        "fig3",
        wanted,
        size=(7.2, 5.6),
        draw=lambda figure: draw(figure, found, algorithms),
        table=table(found, algorithms),
        runs=[one.cell.path for one in done],
        numbers={
            "settings": {
                "clients": CLIENTS,
                "dimensions": DIMENSIONS,
                "rounds": rounds,
                "seeds": seeds,
                "window": found.window,
                "train": train,
            },
            "rows": found.rows(algorithms),
            "failed": failed,
        },
        quick=f"{rounds:,} rounds, {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        failed=failed,
    )


# ---- what came of them


class Found:
    """The distances of all runs that came to their end.

    ``as_tried`` says that the clients trained as in the independent trial.
    """

    def __init__(
        self, done: Sequence[Run], seeds: Sequence[int], rounds: int, as_tried: bool = True
    ) -> None:
        self.rounds, self.seeds, self.as_tried = rounds, list(seeds), as_tried
        self.window = max(1, min(200, rounds // 5))
        self.runs: dict[tuple[Pair, str], list[dict[str, Any]]] = {}
        for one in sorted(done, key=lambda one: one.seed):
            lines = RunDirectory(one.cell.path).metrics()
            self.runs.setdefault((one.pair, one.algorithm), []).append(
                {view: _curve(lines, view) for view in lines[-1]["views"]}
            )

    def curve(self, pair: Pair, algorithm: str, view: str) -> tuple[NDArray[np.float64], ...]:
        """Rounds, and mean and deviation over seeds of the distance."""
        runs = [run[view] for run in self.runs[pair, algorithm]]
        values = np.array([distances for _, distances in runs])
        deviation = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(values.shape[1])
        return np.array(runs[0][0]), values.mean(axis=0), deviation

    def tail(self, pair: Pair, algorithm: str, view: str) -> Spread:
        """The mean over the last rounds, over seeds."""
        found = []
        for run in self.runs[pair, algorithm]:
            rounds, distances = run[view]
            last = rounds[-1]
            found.append(
                fmean(d for t, d in zip(rounds, distances, strict=True) if t > last - self.window)
            )
        return Spread.of(found)

    def predicted(self, pair: Pair) -> float:
        """How far from the optimum Proposition 1 has FedAvg, the mean over seeds."""
        found = []
        for seed in self.seeds:
            goals = targets(seed)
            limit = fedavg_limit(links_of(pair), goals)
            found.append(float(np.linalg.norm(limit - goals.mean(axis=0))))
        return fmean(found)

    def rows(self, algorithms: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each pair, algorithm and view."""
        return [
            self._row(pair, algorithm, view)
            for pair in PAIRS
            for algorithm in algorithms
            for view in self.views(pair, algorithm)
        ]

    def views(self, pair: Pair, algorithm: str) -> list[str]:
        """What was judged; nothing if every seed failed."""
        return list(self.runs.get((pair, algorithm), [{}])[0])

    def _row(self, pair: Pair, algorithm: str, view: str) -> dict[str, Any]:
        tried = TRIAL.get(pair, {}) if view == "server" and self.as_tried else {}
        is_fedavg = (algorithm, view) == ("fedavg", "server")
        return {
            "p0": pair[0],
            "p1": pair[1],
            "algorithm": algorithm,
            "view": view,
            "distance": vars(self.tail(pair, algorithm, view)),
            "largest_at_the_end": max(run[view][1][-1] for run in self.runs[pair, algorithm]),
            "trial": tried.get(algorithm),
            "proposition_1": self.predicted(pair) if is_fedavg else None,
        }


def _curve(lines: Sequence[Mapping[str, Any]], view: str) -> tuple[list[int], list[float]]:
    return [line["round"] for line in lines], [line["views"][view]["distance"] for line in lines]


def table(found: Found, algorithms: Sequence[str]) -> PageTable:
    """The server's model beside the independent trial, and the mean of all clients."""
    rows = [["p₀, p₁", "algorithm", "view", "‖x − x*‖", "trial", "difference", "Prop. 1"]]
    for row in found.rows(algorithms):
        if row["view"] not in ("server", "mean"):
            continue
        spread, trial = row["distance"], row["trial"]
        deviation = f" ± {spread['deviation']:.2g}" if spread["seeds"] > 1 else ""
        rows.append(
            [
                f"{row['p0']:g}, {row['p1']:g}",
                row["algorithm"],
                row["view"],
                f"{spread['mean']:.3g}{deviation}",
                "" if trial is None else f"{trial:g}",
                "" if trial is None else f"{100 * (spread['mean'] / trial - 1):+.0f} %",
                "" if row["proposition_1"] is None else f"{_rounded(row['proposition_1']):.3g}",
            ]
        )
    seeds = len(found.seeds)
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    notes = [
        f"the last {found.window} of {found.rounds:,} rounds; {over}.",
        "server is the model that the server holds; mean, of all clients' models, is no server's.",
        "trial: an independent program's figures; Prop. 1: how far FedAvg is expected to end up.",
    ]
    return PageTable("The numbers", rows[0], rows[1:], notes)


def _rounded(distance: float) -> float:
    """Without what is left of a sum of numbers that cancel."""
    return 0.0 if distance < 1e-12 else distance


# ---- the picture


def draw(figure: Figure, found: Found, algorithms: Sequence[str]) -> None:
    """A panel for each pair: nobody favoured above, the second half favoured below."""
    panels = figure.subplots(-(-len(PAIRS) // 2), 2, sharex=True, sharey=True, squeeze=False)
    # As many panels as pairs, or one more, which stays empty.
    for axes, pair in zip(panels.flat, PAIRS, strict=False):
        draw_panel(axes, found, pair, algorithms)
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


def draw_panel(axes: Axes, found: Found, pair: Pair, algorithms: Sequence[str]) -> None:
    """One pair's curves and bands."""
    first = min(SHOWN_FROM, found.rounds // 2)
    lowest, out_of_sight = 2e-4, list[str]()
    for name in algorithms:
        if not found.views(pair, name):
            continue
        rounds, mean, deviation = found.curve(pair, name, "server")
        kept = rounds >= first
        rounds, mean, deviation = rounds[kept], mean[kept], deviation[kept]
        look = look_of(name)
        axes.fill_between(
            rounds,
            np.maximum(mean - deviation, lowest / 10),
            mean + deviation,
            color=look["color"],
            alpha=0.25,
            linewidth=0,
        )
        every = max(1, len(rounds) // 6)
        axes.plot(
            rounds,
            mean,
            color=look["color"],
            marker=look["marker"],
            markevery=(every // 2, every),
            markersize=4.5,
            linewidth=1.1,
            label=f"{name}, server's model",
        )
        if "mean" in found.views(pair, name):
            rounds, mean, _ = found.curve(pair, name, "mean")
            axes.plot(
                rounds[rounds >= first],
                mean[rounds >= first],
                color=look["color"],
                linestyle=(0, (1, 1.5)),
                linewidth=1.3,
                label=f"{name}, mean of all clients",
            )
            if mean[-1] < lowest:
                out_of_sight.append(f"{name}, mean of all clients: {mean[-1]:.0e} in the end")
    note = "\n".join(out_of_sight)
    axes.text(0.98, 0.97, note, transform=axes.transAxes, ha="right", va="top", size=7.5)
    if "fedavg" in algorithms and (predicted := found.predicted(pair)) > lowest:
        axes.axhline(
            predicted,
            color="#555555",
            linestyle=(0, (6, 2, 1, 2)),
            linewidth=1.1,
            label="fedavg, Proposition 1",
        )
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1)
    axes.set_xlim(first, found.rounds)
    sign = "=" if pair[0] == pair[1] else r"\neq"
    axes.set_title(f"$p_0 {sign} p_1$: {pair[0]:g}, {pair[1]:g}")
    axes.grid(True, which="major")
