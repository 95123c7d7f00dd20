"""Server app and client app together, on Flower's own messages, without its processes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.server.round_log import read_rounds
from fedpbc.deployment.settings import read_fleet, rule_of_client, task_of_client
from fedpbc.errors import FedpbcError
from fedpbc.experiments.user_app import load_user_app
from tests.deployment.fake_network import simulated, simulation_of
from tests.deployment.real_fleet import APP

pytest.importorskip("flwr")

FLEET = """
rounds = 6
seed = 5
clients = 3
fleet = {{app = "mine.py", round_seconds = {seconds}, wait_for = 3}}
{algorithm}
"""


def transferred(message):
    """A message after Flower has serialized and parsed it."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents = deflated(message)
    received = inflate_object_from_contents(message.object_id, contents)
    received.metadata.__dict__["_message_id"] = message.metadata.message_id
    return received


def deflated(message):
    """The objects that Flower transfers for a message, as bytes."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return {key: value.deflate() for key, value in get_all_nested_objects(message).items()}


def make_grid(sockets, is_up):
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid

    from fedpbc.deployment.device.client_app import app

    class LocalGrid(Grid):
        """Runs the client app for every message whose link is up."""

        def __init__(self):
            self.pushed = 0
            # Of requests and their replies, all bytes that Flower transfers.
            self.carried, self.messages = Counter(), Counter()
            self.replies = {}

        def get_node_ids(self):
            return [900 + client for client in range(len(sockets))]

        def push_messages(self, messages):
            names = []
            for message in messages:
                self.pushed += 1
                names.append(f"m{self.pushed}")
                message.metadata.__dict__["_message_id"] = names[-1]
                received = transferred(message)
                client = received.metadata.dst_node_id - 900
                header = received.content["header"]
                if header["kind"] == "work" and not is_up(client, header["round"]):
                    continue
                node = {"trainer": str(sockets[client])}
                context = Context(1, 900 + client, node, RecordDict(), {})
                reply = app(received, context)
                if header["kind"] == "work":
                    self.count("down", message)
                    self.count("up", reply)
                self.replies[names[-1]] = transferred(reply)
            return names

        def count(self, way, message):
            self.messages[way] += 1
            self.carried[way] += sum(map(len, deflated(message).values()))

        def pull_messages(self, message_ids):
            names = [name for name in message_ids if name in self.replies]
            return [self.replies.pop(name) for name in names]

        def set_run(self, run):
            raise NotImplementedError

        run = create_message = send_and_receive = None

    return LocalGrid()


@pytest.fixture
def identity(monkeypatch):
    """As Flower sets it up before an app may make messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def fleet(tmp_path, identity):
    """A function that starts trainers and runs the server app."""
    with ExitStack() as stack:

        def run(algorithm, is_up, seconds):
            from flwr.app import Context, RecordDict

            from fedpbc.deployment.server.server_app import main

            (tmp_path / "mine.py").write_text(APP)
            text = tomli_w.dumps({"algorithm": algorithm})
            (tmp_path / "fleet.toml").write_text(FLEET.format(algorithm=text, seconds=seconds))
            app = load_user_app(tmp_path / "mine.py")
            sockets = []
            for client in range(3):
                make = partial(task_of_client, client=client, app=app, device="cpu")
                folder = tmp_path / f"client{client}"
                trainer = Trainer(client, folder, make, rule_of_client, lazy=True)
                sockets.append(tmp_path / f"s{client}")
                stack.enter_context(TrainerSocket(sockets[-1], trainer.handle))
            grid = make_grid(sockets, is_up)
            main(grid, Context(1, 0, {}, RecordDict(), {"folder": str(tmp_path)}))
            return grid

        yield run


ALGORITHMS = [
    {"name": "fedpbc"},
    {"name": "scaffold"},
    {"name": "mifa", "memory": "client"},
    {"name": "focus"},
    {"name": "area"},
    {"name": "ca_fed"},
    {"name": "amplified_scaffold", "window": 2},
]
FRAMING = 2000
"""Bytes: more than Flower's records, names and our header add to a message's vectors."""


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each["name"])
def test_the_apps_compute_the_simulators_models(fleet, tmp_path, algorithm):
    up = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0], [1, 1, 1]], dtype=bool)
    fleet(algorithm, lambda client, round: up[round, client], seconds=1.5)
    table = np.loadtxt(tmp_path / "timetable.csv", delimiter=",").astype(bool)
    # On a busy machine an answer may be late.
    assert not (table & ~up).any()
    assert table.sum() > 6
    settings = read_fleet(tmp_path / "fleet.toml")
    task = settings.whole_task()
    lines = [{"round": t, "active": np.flatnonzero(row).tolist()} for t, row in enumerate(table)]
    expected = simulated(task, algorithm, lines)
    for view in set(expected) - {"mean"}:
        named = load_file(tmp_path / "models" / f"{view}.safetensors")
        flat = torch.cat([named[name].reshape(-1) for name in task.layout.names])
        assert torch.equal(flat, expected[view])


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each["name"])
def test_the_bytes_are_those_of_the_simulator_and_of_flowers_records(fleet, tmp_path, algorithm):
    grid = fleet(algorithm, lambda client, round: True, seconds=120.0)
    lines = [line for _, line in read_rounds(tmp_path)]
    task = read_fleet(tmp_path / "fleet.toml").whole_task()
    server = simulation_of(task, algorithm, lines).server
    for way, total in (("up", server.bytes_up), ("down", server.bytes_down)):
        logged = sum(line[f"bytes_{way}"] for line in lines)
        assert logged == total > 0
        messages, carried = grid.messages[way], grid.carried[way]
        assert messages == 18
        assert logged < carried < logged + messages * FRAMING
    status = FleetLog(tmp_path).status()
    assert (status.bytes_up, status.bytes_down) == (server.bytes_up, server.bytes_down)


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("hours", [-5, 0, 5])
@pytest.mark.parametrize(("age", "timeout"), [(0.0, 60.0), (12.5, 47.5), (59.0, 3.0), (90.0, 3.0)])
def test_the_trainers_timeout_does_not_depend_on_the_devices_clock(
    monkeypatch, hours, age, timeout
):
    header = {"kind": "work", "round_seconds": 60.0, "age": age}
    timeouts, _ = handled(monkeypatch, header, hours)
    assert timeouts == [timeout]


@pytest.mark.usefixtures("identity")
def test_a_request_without_a_deadline_is_refused(monkeypatch):
    timeouts, reply = handled(monkeypatch, {"kind": "work", "age": 1.0}, 0)
    assert not timeouts
    assert reply.header["reason"] == "round_seconds is None, not a number"


def handled(monkeypatch, header, hours):
    """The timeouts of requests to the trainer, on a device whose clock is so far ahead."""
    from flwr.app import Context, Message, RecordDict

    from fedpbc.deployment.device import client_app
    from fedpbc.deployment.protocol.records import from_records, to_records

    timeouts = []
    message = Message(to_records(Payload(header)), 7, "train", ttl=60.0)
    clock = time.time
    monkeypatch.setattr("time.time", lambda: clock() + 3600 * hours)
    reply = Payload({"kind": "answer"})
    monkeypatch.setattr(
        client_app, "request", lambda path, payload, timeout: timeouts.append(timeout) or reply
    )
    context = Context(1, 7, {"trainer": "/s"}, RecordDict(), {})
    return timeouts, from_records(client_app.handle(message, context).content)


def test_a_job_without_a_folder_is_one_line(capsys):
    from flwr.app import Context, RecordDict

    from fedpbc.deployment.server.server_app import main

    with pytest.raises(FedpbcError, match="folder is ''"):
        main(make_grid([], None), Context(1, 0, {}, RecordDict(), {}))
