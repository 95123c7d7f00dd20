"""Small tasks, timetables and runs that many tests share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpbc.algorithms import ALGORITHMS, Aggregation, Algorithm, ServerInit
from fedpbc.engines import SerialEngine
from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison
from fedpbc.links import from_table
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.tasks import LocalTraining, Quadratic, Supervised

CLIENTS, ROUNDS = 7, 18

TWO_SIDED: dict[str, dict[str, object]] = {
    "scaffold": {},
    "focus": {},
    "area": {},
    "ca_fed": {},
    "amplified_scaffold": {"window": 3},
    "mifa": {"memory": "client", "over": "heard"},
}
"""Every algorithm whose clients have a rule of their own, with options."""


def table(rows: Iterable[Iterable[int]], clients: int) -> np.ndarray:
    """[{0}, {}, {0, 1}] as a table [rounds, clients]."""
    return np.array([[i in set(row) for i in range(clients)] for row in rows], dtype=bool)


def random_table(seed: int = 0, rounds: int = ROUNDS, clients: int = CLIENTS) -> np.ndarray:
    """With empty rounds, the first among them, a late first contact and a client never heard."""
    up = np.random.default_rng(seed).random((rounds, clients)) < 0.3
    up[[0, 5, 6]] = False
    up[: 2 * rounds // 3, 1] = False
    up[-3, 1] = True
    up[:, 2] = False
    return up


def lossy(seed: int = 1, rounds: int = ROUNDS, clients: int = CLIENTS) -> np.ndarray:
    """A downlink that loses two answers in five."""
    return np.random.default_rng(seed).random((rounds, clients)) < 0.6


def quadratic(clients: int = CLIENTS, dimension: int = 4, **training: object) -> Quadratic:
    targets = np.random.default_rng(3).normal(size=(clients, dimension))
    return Quadratic(
        targets, training=LocalTraining(**{"local_steps": 3, "learning_rate": 0.1, **training})
    )


def samples(count: int = 280, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that lie apart in six dimensions."""
    random = torch.Generator().manual_seed(5)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, 6, generator=random)
    return centres[labels] + 0.5 * torch.randn(count, 6, generator=random), labels


def seeded(make, seed: int = 11) -> nn.Module:
    """A module whose first parameters do not depend on what ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def mlp() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)))


def network(clients: int = CLIENTS, module: nn.Module | None = None, **training: object):
    """A small network on a few samples."""
    own = LocalTraining(**{"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, **training})
    data = samples()
    return Supervised(module or mlp(), data, data, clients=clients, alpha=0.5, training=own)


def simulation(
    task,
    algorithm: str | type[Algorithm],
    up: np.ndarray,
    *,
    engine=SerialEngine,
    down: np.ndarray | None = None,
    global_lr: float = 1.0,
    options: dict[str, object] | None = None,
    aggregation: Aggregation | None = None,
    **more: object,
) -> Simulation:
    made = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    x0 = ModelParts.of(task.init(), task.layout).x0
    return Simulation(
        task,
        made(
            ServerInit(x0, task.clients, global_lr, aggregation or Aggregation()),
            **(options or {}),
        ),
        engine(task),
        from_table(up),
        None if down is None else from_table(down),
        **more,
    )


def finished(*args: object, **more: object) -> tuple[Simulation, list[Metrics]]:
    """A simulation that has been run to its end, and what it gave."""
    made = simulation(*args, **more)
    return made, list(made.run())


def compared(folder: Path, names: str, **given: object) -> None:
    """A comparison in its folder, in this process and without a table and a plot at the end."""
    small = {"data": "digits", "clients": 8, "rounds": 4, "seeds": [1]}
    plan = plan_comparison({**small, "algorithms": names.split(","), **given})
    with ComparisonDirectory(folder).opened(plan):
        ComparisonDirectory(folder).run(plan, 1, lambda _: None)


def views(*args: object, **more: object) -> dict[str, torch.Tensor]:
    """The models of all views at the end."""
    return finished(*args, **more)[0].view_models()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖/‖b‖."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
