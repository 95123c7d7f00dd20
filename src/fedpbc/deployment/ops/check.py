"""Compare a fleet's models with a simulation on the timetable that its server logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.deployment.ops.status import read_job_settings
from fedpbc.deployment.protocol.tensors import checksum
from fedpbc.deployment.server.round_log import ROUND_LOG, read_rounds
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.engines import Engine, PoolEngine, SerialEngine
from fedpbc.engines.choose import SHORT, seconds_per_round
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, Trained
from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.limits import MAX_INTEGER
from fedpbc.links import from_table
from fedpbc.parallel import usable_cores
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.membership import MembershipChange
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.storage.files import is_own_file
from fedpbc.tasks import Task
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.text import command

__all__ = [
    "TOLERANCE",
    "ViewCheck",
    "accepted_changes",
    "check_job",
    "flat_model",
    "read_models",
    "read_timetable",
]

TOLERANCE = 1e-6
"""The largest difference of a parameter that counts as equal."""


@dataclass(frozen=True)
class ViewCheck:
    """One view's model: the fleet's compared with the simulator's.

    Attributes:
        rounds: after how many rounds the server wrote the model.
        difference: the largest absolute difference of a parameter.
        fleet_accuracy: on the test samples; None if there are none.
        first: the first round, and in it the first client, whose answer had other bits than in the
            simulation; None if all that were logged had the same.
    """

    view: str
    rounds: int
    difference: float
    fleet_accuracy: float | None
    simulated_accuracy: float | None
    first: tuple[int, int] | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the models are equal within the tolerance."""
        return self.difference <= TOLERANCE


def check_job(folder: Path, on_round: Callable[[int, int], None] | None = None) -> list[ViewCheck]:
    """Simulate a fleet's job again and compare the models that its server wrote.

    A stopped job is compared at the round in which its models were written. ``on_round`` is called
    with the number of simulated rounds and the total.
    """
    # Reports a wrong folder before anything else is read.
    read_job_settings(folder)
    settings = read_fleet(folder / "fleet.toml")
    models = read_models(folder)
    rounds_written = {rounds for rounds, _ in models.values()}
    last = max(rounds_written)
    membership = read_membership(folder, settings.clients)
    everyone = settings.clients + sum(change.joined for change in membership.values())
    timetable = read_timetable(folder, everyone)
    if len(timetable) < last:
        raise FedpbcError(
            f"{folder} has models of round {last} but a log of {len(timetable)} rounds: the server "
            "is writing; check again after its next round"
        )
    membership = {t: change for t, change in membership.items() if t < last}
    joined = sum(change.joined for change in membership.values())
    first, settings = settings, settings.with_clients(settings.clients + joined)
    timetable = timetable[:last, : settings.clients]
    task = _whole_task(settings, folder)
    engine = ComparedEngine(_exact_engine(task, int(timetable.size)), read_checksums(folder))
    simulation = Simulation(
        task,
        first.algorithm(ModelParts.of(task.init(), task.layout).x0),
        engine,
        from_table(timetable),
        evaluate_every=last,
        views=list(models),
        membership=membership,
    )
    simulated: dict[int, dict[str, Tensor]] = {}
    with closing(simulation):
        for done, _ in enumerate(simulation.steps(), start=1):
            if done in rounds_written:
                with one_thread():
                    simulated[done] = simulation.view_models()
            if on_round is not None:
                on_round(done, last)
    checks = []
    for view, (rounds, parameters) in models.items():
        layout = task.layout.without_kept()
        model = simulated[rounds][view]
        pair = flat_model(folder, view, parameters, layout), model[: layout.dimension]
        difference = float((pair[0].double() - pair[1].cpu().double()).abs().max())
        accuracies: tuple[float | None, float | None] = None, None
        # User data has no designated test samples.
        if settings.fleet.app is None:
            rest = model[layout.dimension :]
            full_models = (torch.cat([each, rest]) if len(rest) else each for each in pair)
            fleets, simulations = (task.evaluate(each).test_accuracy for each in full_models)
            accuracies = fleets, simulations
        other = engine.first if engine.first and engine.first[0] < rounds else None
        checks.append(ViewCheck(view, rounds, difference, *accuracies, first=other))
    return checks


class ComparedEngine:
    """An engine that notes the first result other than what the server counted."""

    def __init__(self, engine: Engine, checksums: Sequence[Mapping[str, Any]]) -> None:
        """Run on ``engine``; ``checksums`` are those of each round's answers, by client."""
        self._engine, self._checksums, self.name = engine, checksums, engine.name
        self._last_round: dict[int, int] = {}
        self.first: tuple[int, int] | None = None

    def submit(self, segment: Segment) -> None:
        """Accept a segment."""
        self._last_round[segment.client] = segment.last_round
        self._engine.submit(segment)

    def result(self, client: int) -> Trained:
        """Wait for the client's segment, and compare its upload."""
        trained, t = self._engine.result(client), self._last_round[client]
        if self._checksums[t].get(str(client), counted := checksum(trained.upload)) != counted:
            self.first = min(self.first or (t, client), (t, client))
        return trained

    def close(self) -> None:
        """Cancel unfinished work and free all resources."""
        self._engine.close()


def read_models(folder: Path) -> dict[str, tuple[int, dict[str, Tensor]]]:
    """Read each view's model that a server wrote, and after how many rounds."""
    models = {}
    for view in DEPLOYABLE:
        path = folder / "models" / f"{view}.safetensors"
        if not path.exists() and not path.is_symlink():
            continue
        try:
            if not is_own_file(folder, f"models/{path.name}"):
                raise ValueError("it is not a regular file of this folder")
            with safe_open(path, framework="pt") as file:
                rounds = int((file.metadata() or {})["rounds"])
                parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if not 1 <= rounds <= MAX_INTEGER:
                raise ValueError(f"it says that it is of round {rounds}")
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise FedpbcError(f"{path} is damaged: {one_line(error)}") from error
        models[view] = rounds, parameters
    if not models:
        raise FedpbcError(
            f"{folder} has no models yet: a server writes them every 'views_every' rounds and at "
            f"the end; {command('fedpbc', 'fleet', 'status', folder)} shows its progress"
        )
    return models


def read_timetable(folder: Path, clients: int) -> NDArray[np.bool_]:
    """Read which clients got through in which round, from the server's log."""
    lines = [line for _, line in read_rounds(folder)]
    timetable = np.zeros((len(lines), clients), dtype=np.bool_)
    for t, line in enumerate(lines):
        if any(i >= clients for i in line["active"]):
            raise FedpbcError(
                f"{folder / ROUND_LOG} is damaged in line {t + 1}: there are {clients} clients"
            )
        timetable[t, line["active"]] = True
    return timetable


def read_checksums(folder: Path) -> list[Mapping[str, Any]]:
    """The checksums of the answers that counted in each round; none of a log that was restored."""
    sums = [line.get("checksums") for _, line in read_rounds(folder)]
    return [each if isinstance(each, Mapping) else {} for each in sums]


def read_membership(folder: Path, clients: int) -> dict[int, MembershipChange]:
    """Read who joined and left before which round, from the server's log."""
    changes = {}
    for _, line in read_rounds(folder):
        joined, left = line.get("joined", []), line.get("left", [])
        if joined != list(range(clients, clients + len(joined))):
            raise FedpbcError(
                f"{folder / ROUND_LOG} is damaged in line {line['round'] + 1}: {joined} joined, "
                f"but there are {clients} clients"
            )
        clients += len(joined)
        if joined or left:
            changes[line["round"]] = MembershipChange(len(joined), tuple(left))
    return changes


def accepted_changes(folder: Path) -> dict[int, int]:
    """The clients whose app or data changed during a job, and since which round that counts.

    The simulator has only their present data, so models from then on differ.
    """
    lines = (line for _, line in read_rounds(folder))
    return {client: line["round"] for line in lines for client in line.get("changed", ())}


def flat_model(folder: Path, view: str, parameters: dict[str, Tensor], layout: Layout) -> Tensor:
    """A view's parameters as one vector; a FedpbcError if they are those of another model."""
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    expected = dict(zip(layout.names, layout.shapes, strict=True))
    if shapes != expected or not all(tensor.is_floating_point() for tensor in parameters.values()):
        raise FedpbcError(
            f"{folder}/models/{view}.safetensors does not match the model of fleet.toml"
        )
    return torch.cat([parameters[name].reshape(-1) for name in layout.names])


def _whole_task(settings: FleetSettings, folder: Path) -> Task:
    try:
        return settings.whole_task()
    except InputError as error:
        if settings.fleet.app is None or not error.option.startswith("data("):
            raise
        raise FedpbcError(
            f"{folder} cannot be compared with the simulator on this machine, because that needs "
            f"the data of every device: {error}"
        ) from error


def _exact_engine(task: Task, client_rounds: int) -> Engine:
    """Choose an engine with the same bits as a device; the stacked engine's differ."""
    if usable_cores() > 1 and seconds_per_round(task) * client_rounds > SHORT:
        try:
            return PoolEngine(task)
        except InputError:
            pass
    return SerialEngine(task)
