"""A fleet in one process: a transport whose links fail as specified, on a simulated clock."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpbc.algorithms import Aggregation
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import Payload, read_payload, refusal, write_payload
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import Server
from fedpbc.deployment.server.transport import Reply
from fedpbc.deployment.settings import FleetSection
from fedpbc.engines import SerialEngine
from fedpbc.errors import FedpbcError
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.model_parts import ModelParts
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
    "twice": it arrives twice; "again": the request arrives again after the next one, and "delayed":
    only then; "restart": the device does, before the request arrives.

    ``vectors`` counts the bytes of vectors, ``carried`` all bytes and ``messages`` the messages
    that went down to devices and arrived up here.
    """

    def __init__(self, trainers: Sequence[Trainer], fate: Callable[[int, int], str]) -> None:
        self.trainers, self.fate = list(trainers), fate
        self.clock = 0.0
        self.sent = 0
        self._ready: list[tuple[float, Reply]] = []
        self._stray: list[tuple[int, Payload]] = []
        self.requests: list[tuple[int, int]] = []
        self.vectors, self.carried, self.messages = Counter(), Counter(), Counter()

    def nodes(self) -> Iterable[int]:
        return range(100, 100 + len(self.trainers))

    def count(self, way: str, payload: Payload) -> None:
        self.messages[way] += 1
        self.vectors[way] += sum(len(vector.data) for vector in payload.vectors.values())
        self.carried[way] += len(serialized(payload))

    def send(self, node: int, payload: Payload, seconds: float) -> str | None:
        self.sent += 1
        message, client = f"m{self.sent}", node - 100
        fate = "ok"
        if payload.kind == "work":
            self.count("down", payload)
            self.requests.append((client, payload.integer("round")))
            fate = self.fate(*self.requests[-1])
        stray = [late for to, late in self._stray if to == client]
        self._stray = [(to, late) for to, late in self._stray if to != client]
        if fate in ("again", "delayed"):
            self._stray.append((client, payload))
        if fate == "restart":
            self.restart(client)
        if fate not in ("lost", "delayed"):
            reply = Reply(message, node, self.reply(client, payload))
            after = self.clock + (seconds + 0.3 if fate == "late" else 0.5)
            self._ready += [(after, reply)] * {"unheard": 0, "twice": 2}.get(fate, 1)
        for late in stray:
            # Nobody waits for these replies any more.
            self.reply(client, late)
        return message

    def restart(self, client: int) -> None:
        """Start a device's trainer again, from its disk."""
        self.trainers[client] = restarted(self.trainers[client])

    def reply(self, client: int, payload: Payload) -> Payload:
        try:
            return self.trainers[client].handle(payload)
        except FedpbcError as error:
            return refusal(str(error))

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        arrived = [reply for at, reply in self._ready if at <= self.clock]
        self._ready = [(at, reply) for at, reply in self._ready if at > self.clock]
        for reply in arrived:
            if reply.payload is not None and reply.payload.kind != "hello":
                self.count("up", reply.payload)
        return arrived

    def wait(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        return self.clock


def restarted(trainer: Trainer) -> Trainer:
    """The trainer of a new process, with what the other one left on the disk."""
    make = trainer._make_task, trainer._make_rule
    return Trainer(trainer.client, trainer.folder, *make, lazy=trainer.lazy, now=trainer._now)


def make_server(
    task,
    algorithm,
    folder: ServerDirectory,
    network: FakeNetwork,
    rounds: int,
    global_lr: float = 1.0,
    aggregation: Aggregation | None = None,
    **fleet: Any,
) -> Server:
    rule = make_algorithm(algorithm, task, global_lr, aggregation)
    return Server(
        rule,
        task.training,
        folder,
        network,
        rounds=rounds,
        layout=task.layout,
        parts=ModelParts.of(task.init(), task.layout),
        client_settings="{}",
        fleet=FleetSection(**{"round_seconds": ROUND, "wait_for": len(network.trainers), **fleet}),
        now=network.now,
        sleep=network.wait,
    )


def make_trainers(task, folder: Path, algorithm: Any = "fedpbc", **options) -> list[Trainer]:
    def rule(settings, task):
        return make_algorithm(algorithm, task).client_rule()

    return [
        Trainer(client, folder / f"client{client}", lambda settings: task, rule, **options)
        for client in range(task.clients)
    ]


def simulated(task, algorithm, lines, aggregation=None) -> dict[str, torch.Tensor]:
    """The simulator's models on the timetable that the server logged."""
    return simulation_of(task, algorithm, lines, aggregation).view_models()


def simulation_of(task, algorithm, lines, aggregation=None) -> Simulation:
    """A simulation on the timetable that the server logged, after its last round."""
    table = np.zeros((len(lines), task.clients), dtype=bool)
    for t, line in enumerate(lines):
        assert line["round"] == t
        table[t, line["active"]] = True
    rule = make_algorithm(algorithm, task, 1.0, aggregation)
    simulation = Simulation(task, rule, SerialEngine(task), from_table(table))
    list(simulation.run())
    return simulation


def assert_same(server: Server, expected: dict[str, torch.Tensor]) -> None:
    models = server.state.view_models()
    assert set(models) == set(expected) - {"mean"}
    for view, model in models.items():
        assert torch.equal(model, expected[view]), view


def serialized(payload: Payload) -> bytes:
    stream = io.BytesIO()
    write_payload(stream, payload)
    return stream.getvalue()


def sent_and_received(payload: Payload) -> Payload:
    return read_payload(io.BytesIO(serialized(payload)))
