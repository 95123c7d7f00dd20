"""A fleet in one process: a transport whose links fail as specified, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import Payload, read_payload, refusal, write_payload
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import Reply, Server
from fedpbc.deployment.settings import FleetSection
from fedpbc.engines import SerialEngine
from fedpbc.errors import FedpbcError
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import LocalTraining, Supervised

ROUND = 10.0


class Killed(BaseException):
    """Stands for SIGKILL."""


def small_task(clients: int = 3) -> Supervised:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(30 * clients, 4, generator=generator)
    labels = torch.arange(30 * clients) % 3
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return Supervised(
        module,
        (inputs, labels),
        (inputs, labels),
        clients=clients,
        partition=np.arange(30 * clients).reshape(clients, -1),
        training=LocalTraining(local_steps=2, batch_size=8, learning_rate=0.1),
        seed=3,
    )


class FakeNetwork:
    """Nodes 100, 101, … are clients 0, 1, …; ``fate(client, round)`` is that of a request.

    "ok"; "lost": the request is; "unheard": the reply is lost; "late": it arrives after the round;
    "twice": it arrives twice.
    """

    def __init__(self, trainers: Sequence[Trainer], fate: Callable[[int, int], str]) -> None:
        self.trainers, self.fate = list(trainers), fate
        self.clock = 0.0
        self.sent = 0
        self._ready: list[tuple[float, Reply]] = []
        self.requests: list[tuple[int, int]] = []

    def nodes(self) -> Iterable[int]:
        return range(100, 100 + len(self.trainers))

    def send(self, node: int, payload: Payload, seconds: float) -> str | None:
        self.sent += 1
        message, client = f"m{self.sent}", node - 100
        fate = "ok"
        if payload.kind == "work":
            self.requests.append((client, payload.integer("round")))
            fate = self.fate(*self.requests[-1])
        if fate == "lost":
            return message
        reply = Reply(message, node, self.reply(client, payload))
        after = self.clock + (seconds + 0.3 if fate == "late" else 0.5)
        self._ready += [(after, reply)] * {"unheard": 0, "twice": 2}.get(fate, 1)
        return message

    def reply(self, client: int, payload: Payload) -> Payload:
        try:
            return self.trainers[client].handle(payload)
        except FedpbcError as error:
            return refusal(str(error))

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        arrived = [reply for at, reply in self._ready if at <= self.clock]
        self._ready = [(at, reply) for at, reply in self._ready if at > self.clock]
        return arrived

    def wait(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        return self.clock


def make_server(
    task,
    algorithm,
    folder: ServerDirectory,
    network: FakeNetwork,
    rounds: int,
    global_lr: float = 1.0,
) -> Server:
    rule = make_algorithm(algorithm, task, global_lr)
    return Server(
        rule,
        task.training,
        folder,
        network,
        rounds=rounds,
        layout=task.layout,
        client_settings="{}",
        fleet=FleetSection(round_seconds=ROUND, wait_for=len(network.trainers)),
        now=network.now,
        sleep=network.wait,
    )


def make_trainers(task, folder: Path, **options) -> list[Trainer]:
    return [
        Trainer(client, folder / f"client{client}", lambda settings: task, **options)
        for client in range(task.clients)
    ]


def simulated(task, algorithm, lines) -> dict[str, torch.Tensor]:
    """The simulator's models on the timetable that the server logged."""
    table = np.zeros((len(lines), task.clients), dtype=bool)
    for t, line in enumerate(lines):
        assert line["round"] == t
        table[t, line["active"]] = True
    rule = make_algorithm(algorithm, task)
    simulation = Simulation(task, rule, SerialEngine(task), from_table(table))
    list(simulation.run())
    return simulation.view_models()


def assert_same(server: Server, expected: dict[str, torch.Tensor]) -> None:
    models = server.state.view_models()
    assert set(models) == set(expected) - {"mean"}
    for view, model in models.items():
        assert torch.equal(model, expected[view]), view


def sent_and_received(payload: Payload) -> Payload:
    import io

    stream = io.BytesIO()
    write_payload(stream, payload)
    return read_payload(io.BytesIO(stream.getvalue()))
