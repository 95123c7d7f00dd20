"""A hundred quadratics over two kinds of links: the runs behind figure 3.

Every pair (p₀, p₁), algorithm and seed is a run's folder, OUT/P0-P1/ALGORITHM/seed-K: what was
stopped goes on, and what is finished is not run again.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.algorithms import find_algorithm
from fedpbc.cli.display import GridDisplay, GridRow
from fedpbc.engines import ENGINES
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.configuration import Config, identity
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import GridCell, run_grid
from fedpbc.options import nearest
from fedpbc.paper.experiment import ExperimentRequest
from fedpbc.paper.request import merged, options_of_algorithm
from fedpbc.parallel import usable_cores
from fedpbc.randomness import generator
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory, make_directory
from fedpbc.tasks.device import find_device

__all__ = [
    "CLIENTS",
    "DIMENSIONS",
    "PAIRS",
    "Pair",
    "Run",
    "links_of",
    "planned",
    "run_all",
    "targets",
]

CLIENTS, DIMENSIONS = 100, 100
Pair = tuple[float, float]
PAIRS = ((0.1, 0.1), (0.5, 0.5), (0.1, 0.5), (0.3, 0.9))
"""(p₀, p₁); the paper does not say which it took."""


@dataclass(frozen=True)
class Run:
    """One run of the grid."""

    pair: Pair
    algorithm: str
    seed: int
    cell: GridCell

    @property
    def name(self) -> str:
        """Its folder below OUT."""
        return f"{name_of(self.pair)}/{self.algorithm}/seed-{self.seed}"


def targets(seed: int) -> NDArray[np.float64]:
    """u_i ~ N((i/1000)·1, 0.01·I) for i = 1 … 100.

    Example:
        >>> targets(0).shape
        (100, 100)
    """
    noise = generator(seed, "fig3 targets").standard_normal((CLIENTS, DIMENSIONS))
    place = np.arange(1, CLIENTS + 1) / 1000
    return np.asarray(place[:, None] + 0.1 * noise, dtype=np.float64)


def links_of(pair: Pair) -> list[float]:
    """p_i: the first half of the clients has p₀, the second p₁.

    Example:
        >>> links_of((0.1, 0.5))[49:51]
        [0.1, 0.5]
    """
    half = CLIENTS // 2
    return [pair[0]] * half + [pair[1]] * (CLIENTS - half)


def name_of(pair: Pair) -> str:
    """A pair as a folder's name."""
    return f"{pair[0]:g}-{pair[1]:g}"


def planned(
    wanted: ExperimentRequest, algorithms: Sequence[str], seeds: Sequence[int], rounds: int
) -> list[Run]:
    """All runs, the long ones first; wrong options are found here, before anything is written."""
    given = {k: v for k, v in wanted.settings.items() if k != "algorithms"}
    if (engine := given.get("engine", "auto")) not in (known := ["auto", *ENGINES]):
        raise InputError("engine", engine, nearest(str(engine), known))
    find_device(given.get("device", "cpu"))
    found = []
    for algorithm in algorithms:
        for pair in PAIRS:
            for seed in seeds:
                config = merged(
                    {
                        "rounds": rounds,
                        "seed": seed,
                        "algorithm": options_of_algorithm(wanted, algorithm),
                        "task": {
                            "name": "quadratic",
                            "targets": str(targets_path(wanted.out, seed)),
                        },
                        "train": {"local_steps": 100, "learning_rate": 1e-4, "decay": False},
                        "links": {"name": "bernoulli", "p": links_of(pair)},
                    },
                    given,
                )
                Config.from_dict(config)
                path = wanted.out / name_of(pair) / algorithm / f"seed-{seed}"
                found.append(Run(pair, algorithm, seed, GridCell(path, config)))
    return sorted(found, key=lambda one: not find_algorithm(one.algorithm).everyone_trains)


def targets_path(out: Path, seed: int) -> Path:
    """Where a seed's targets are."""
    return out / "targets" / f"seed-{seed}.npy"


def write_targets(out: Path, seeds: Sequence[int]) -> None:
    """Write each seed's targets, for the runs to read."""
    (out / "targets").mkdir(exist_ok=True)
    for seed in seeds:
        content = io.BytesIO()
        np.save(content, targets(seed))
        write_atomically(targets_path(out, seed), content.getvalue())


def refuse_another_run(cell: GridCell, overwrite: bool) -> None:
    """A folder with a run of other options is not gone on with."""
    folder = RunDirectory(cell.path)
    if overwrite or not folder.holds_run:
        return

    def comparable(config: Config) -> dict[str, Any]:
        counted = replace(config, general=replace(config.general, clients=CLIENTS))
        return identity(counted.to_dict())

    held = Config.from_dict(read_toml(folder.config_path))
    if comparable(held) != comparable(Config.from_dict(cell.config)):
        right = "a new folder, or with --overwrite"
        raise InputError("out", Verbatim(f"one where {cell.path} has other options"), right)


def clear(grid: Sequence[Run]) -> None:
    """Remove the runs that are to be made anew."""
    for folder in (RunDirectory(one.cell.path) for one in grid):
        if folder.holds_run:
            with folder.locked():
                folder.clear()


def run_all(grid: Sequence[Run], wanted: ExperimentRequest) -> list[str | None]:
    """Run what is not finished; gives what went wrong with each, or None."""
    if wanted.jobs is not None and wanted.jobs < 1:
        raise InputError("jobs", wanted.jobs, "at least 1")
    for one in grid:
        refuse_another_run(one.cell, wanted.overwrite)
    make_directory(wanted.out)
    with locked_directory(wanted.out):
        if wanted.overwrite:
            clear(grid)
        write_targets(wanted.out, sorted({one.seed for one in grid}))
        jobs = min(wanted.jobs or usable_cores(), len(grid))
        rows = [GridRow(one.name, one.cell.config["rounds"]) for one in grid]
        with GridDisplay(rows, wanted.out, quiet=wanted.quiet) as display:
            return run_grid([one.cell for one in grid], jobs, display.on_progress)
