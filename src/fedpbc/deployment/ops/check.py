"""Did the fleet compute what the simulator does? On the timetable that the server logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.deployment.ops.status import read_plan
from fedpbc.deployment.server.directory import read_lines
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.engines import Engine, PoolEngine, SerialEngine
from fedpbc.engines.choose import SHORT, seconds_a_round
from fedpbc.engines.engine import one_thread
from fedpbc.errors import FedpbcError, InputError
from fedpbc.links import from_table
from fedpbc.parallel import usable_cores
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.tasks import Task
from fedpbc.tasks.layout import Layout

__all__ = ["ALLOWED", "ViewCheck", "check_job"]

ALLOWED = 1e-6
"""The largest difference of any parameter that counts as the same."""


@dataclass(frozen=True)
class ViewCheck:
    """One view's model, the fleet's beside the simulator's.

    Attributes:
        view: which model.
        rounds: after how many rounds; that is when the server wrote it.
        difference: the largest absolute difference of any parameter.
        fleet_accuracy: on the test samples; None where there are none.
        simulated_accuracy: the simulator's.

    Example:
        >>> ViewCheck("server", 10, 3e-8, 0.71, 0.71).is_same
        True
    """

    view: str
    rounds: int
    difference: float
    fleet_accuracy: float | None
    simulated_accuracy: float | None

    @property
    def is_same(self) -> bool:
        """Whether the fleet computed what the simulator does."""
        return self.difference <= ALLOWED


def check_job(folder: Path, on_round: Callable[[int, int], None] | None = None) -> list[ViewCheck]:
    """Simulate a fleet's job anew and compare the models that its server wrote.

    A job that was stopped is compared at the round in which its models were written.

    Args:
        folder: the server's.
        on_round: told how many rounds are simulated, and of how many.
    """
    # Names a wrong folder before anything of it is read.
    read_plan(folder)
    settings = read_fleet(folder / "fleet.toml")
    found = read_models(folder)
    last = max(rounds for rounds, _ in found.values())
    table = timetable(folder, settings.clients)
    if len(table) < last:
        raise FedpbcError(
            f"{folder} has models of round {last} and a log of {len(table)}: the server is at it; "
            "check again after its next round"
        )
    task = _whole_task(settings, folder)
    algorithm = settings.algorithm(task.init())
    simulation = Simulation(
        task,
        algorithm,
        _exact_engine(task, int(table[:last].size)),
        from_table(table[:last]),
        evaluate_every=last,
        views=list(found),
    )
    wanted = {rounds for rounds, _ in found.values()}
    simulated: dict[int, dict[str, Tensor]] = {}
    with closing(simulation):
        for done, _ in enumerate(simulation.steps(), start=1):
            if done in wanted:
                with one_thread():
                    simulated[done] = simulation.view_models()
            if on_round is not None:
                on_round(done, last)
    # Of a user's own data nobody has said what is for testing.
    judge = task if settings.fleet.app is None else None
    return [
        _compared(
            view, rounds, _flat(folder, view, named, task.layout), simulated[rounds][view], judge
        )
        for view, (rounds, named) in found.items()
    ]


def _compared(
    view: str, rounds: int, fleets: Tensor, simulated: Tensor, judge: Task | None
) -> ViewCheck:
    difference = float((fleets.double() - simulated.cpu().double()).abs().max())
    if judge is None:
        return ViewCheck(view, rounds, difference, None, None)
    accuracies = (judge.evaluate(model).test_accuracy for model in (fleets, simulated))
    return ViewCheck(view, rounds, difference, *accuracies)


def read_models(folder: Path) -> dict[str, tuple[int, dict[str, Tensor]]]:
    """The views' models that a server wrote, and after how many rounds."""
    found = {}
    for view in DEPLOYABLE:
        path = folder / "models" / f"{view}.safetensors"
        if not path.exists():
            continue
        try:
            with safe_open(path, framework="pt") as file:
                rounds = int((file.metadata() or {})["rounds"])
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise FedpbcError(f"{path} is damaged: {error}") from error
        found[view] = rounds, named
    if not found:
        raise FedpbcError(
            f"{folder} has no models yet: a server writes them every 'views_every' rounds and at "
            f"the end; 'fedpbc fleet status {folder}' shows how far it is"
        )
    return found


def timetable(folder: Path, clients: int) -> NDArray[np.bool_]:
    """Who got through in which round, from the server's log."""
    lines: list[dict[str, Any]] = list(read_lines(folder / "rounds.jsonl"))
    table = np.zeros((len(lines), clients), dtype=np.bool_)
    for t, line in enumerate(lines):
        if line["round"] != t or any(not 0 <= i < clients for i in line["active"]):
            raise FedpbcError(f"{folder}/rounds.jsonl is damaged in line {t + 1}")
        table[t, line["active"]] = True
    return table


def _flat(folder: Path, view: str, named: dict[str, Tensor], layout: Layout) -> Tensor:
    if sorted(named) != sorted(layout.names):
        raise FedpbcError(f"{folder}/models/{view}.safetensors is of another model than fleet.toml")
    return torch.cat([named[name].reshape(-1) for name in layout.names])


def _whole_task(settings: FleetSettings, folder: Path) -> Task:
    try:
        return settings.whole_task()
    except InputError as error:
        if settings.fleet.app is None or not error.option.startswith("data("):
            raise
        raise FedpbcError(
            f"{folder} cannot be compared with the simulator here, which needs the data of every "
            f"device: {error}"
        ) from error


def _exact_engine(task: Task, client_rounds: int) -> Engine:
    """One of the engines with a device's own bits; stacking clients would change the last."""
    if usable_cores() > 1 and seconds_a_round(task) * client_rounds > SHORT:
        try:
            return PoolEngine(task)
        except InputError:
            pass
    return SerialEngine(task)


def worst(checks: Sequence[ViewCheck]) -> ViewCheck:
    """The view that differs most; a difference that is no number is the worst of all."""
    return max(checks, key=lambda one: np.inf if np.isnan(one.difference) else one.difference)
