"""Server process, nodes and trainers together in one process, over their real sockets."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial

import httpx
import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.device.fleet_client import connect
from fedpbc.deployment.device.node_process import Node, UnreachableError, seconds_to_reply
from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.protocol import flower_messages
from fedpbc.deployment.protocol.flower_messages import joined, unpack
from fedpbc.deployment.protocol.messages import MessageError, Payload
from fedpbc.deployment.server.round_log import read_rounds
from fedpbc.deployment.server.server_process import run_job
from fedpbc.deployment.settings import read_fleet, rule_of_client, task_of_client
from fedpbc.experiments.user_app import load_user_app
from tests.deployment.fake_network import simulated, simulation_of
from tests.deployment.real_fleet import APP

# httpx leaves a Unix socket open if there is no other end.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
FLEET = """
rounds = 6
seed = 5
clients = 3
fleet = {{app = "mine.py", round_seconds = {seconds}, wait_for = 3}}
{algorithm}
"""


def over_socket(path):
    """Flower's client of the Fleet API, over a Unix socket, and the node's public key."""
    client, key = connect("server", None, None)
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)))
    return client, key


class CuttableNode(Node):
    """A node that loses the messages of some rounds, and counts what it carries."""

    is_up = staticmethod(lambda round: True)
    carried, messages = Counter(), Counter()
    stopped = threading.Event()

    def _handle(self, node, message, trees):
        if message.HasField("content"):
            payload = unpack(message)
            if payload.kind == "work":
                if not self.is_up(payload.integer("round")):
                    return
                self.count("down", message.content.ByteSize())
        super()._handle(node, message, trees)

    def _push(self, node, message, reply, deadline):
        if reply.kind == "answer":
            packed, pieces = flower_messages.pack(reply, None)
            self.count("up", packed.content.ByteSize() + sum(map(len, pieces)))
        super()._push(node, message, reply, deadline)

    def count(self, way, size):
        self.messages[way] += 1
        self.carried[way] += size

    def run(self, server):
        while not server.exists() and not self.stopped.wait(0.02):
            pass
        while not self.stopped.is_set():
            try:
                self.step()
            except UnreachableError:
                self.stopped.wait(0.05)


@pytest.fixture
def fleet(tmp_path):
    """A function that starts trainers and nodes, and runs the server."""
    with ExitStack() as stack:

        def run(algorithm, is_up, seconds):
            (tmp_path / "mine.py").write_text(APP)
            text = tomli_w.dumps({"algorithm": algorithm})
            (tmp_path / "fleet.toml").write_text(FLEET.format(algorithm=text, seconds=seconds))
            app = load_user_app(tmp_path / "mine.py")
            carried, messages, stopped = Counter(), Counter(), threading.Event()
            for client in range(3):
                make = partial(task_of_client, client=client, app=app, device="cpu")
                folder = tmp_path / f"client{client}"
                trainer = Trainer(client, folder, make, rule_of_client, lazy=True)
                socket = tmp_path / f"s{client}"
                stack.enter_context(TrainerSocket(socket, trainer.handle))
                connect = partial(over_socket, tmp_path / "server")
                node = CuttableNode(connect, socket, registers=True)
                node.is_up = partial(is_up, client)
                node.carried, node.messages, node.stopped = carried, messages, stopped
                stack.callback(node.disconnect)
                thread = threading.Thread(target=node.run, args=(tmp_path / "server",), daemon=True)
                stack.callback(thread.join, 30)
                thread.start()
            stack.callback(stopped.set)
            run_job(tmp_path, tmp_path / "server", has_keys=False)
            return carried, messages

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each["name"])
def test_they_compute_the_simulators_models(fleet, tmp_path, algorithm):
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each["name"])
def test_the_bytes_are_those_of_the_simulator_and_of_flowers_records(fleet, tmp_path, algorithm):
    carried, messages = fleet(algorithm, lambda client, round: True, seconds=120.0)
    lines = [line for _, line in read_rounds(tmp_path)]
    task = read_fleet(tmp_path / "fleet.toml").whole_task()
    server = simulation_of(task, algorithm, lines).server
    for way, total in (("up", server.bytes_up), ("down", server.bytes_down)):
        logged = sum(line[f"bytes_{way}"] for line in lines)
        assert logged == total > 0
        assert messages[way] == 18
        assert logged < carried[way] < logged + messages[way] * FRAMING
    status = FleetLog(tmp_path).status()
    assert (status.bytes_up, status.bytes_down) == (server.bytes_up, server.bytes_down)


def test_large_messages_travel_in_pieces(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(flower_messages, "LARGEST_INLINE", 100)
    monkeypatch.setattr(flower_messages, "PIECE_SIZE", 300)
    fleet({"name": "fedpbc"}, lambda client, round: True, seconds=120.0)
    table = np.loadtxt(tmp_path / "timetable.csv", delimiter=",").astype(bool)
    assert table.all()
    settings = read_fleet(tmp_path / "fleet.toml")
    task = settings.whole_task()
    lines = [{"round": t, "active": [0, 1, 2]} for t in range(6)]
    expected = simulated(task, {"name": "fedpbc"}, lines)["server"]
    named = load_file(tmp_path / "models" / "server.safetensors")
    flat = torch.cat([named[name].reshape(-1) for name in task.layout.names])
    assert torch.equal(flat, expected)


@pytest.mark.parametrize(("age", "timeout"), [(0.0, 60.0), (12.5, 47.5), (59.0, 3.0), (90.0, 3.0)])
def test_the_trainers_timeout_is_by_the_servers_clock(age, timeout):
    payload = Payload({"kind": "work", "round_seconds": 60.0, "age": age})
    assert seconds_to_reply(payload, ttl=1e9) == timeout


def test_a_request_without_a_deadline_is_malformed():
    with pytest.raises(MessageError, match="round_seconds is None, not a number"):
        seconds_to_reply(Payload({"kind": "work", "age": 1.0}), ttl=60.0)


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"not protobuf"])
def test_unreadable_content_is_a_message_error(content):
    with pytest.raises(MessageError):
        joined([content])


def test_the_node_imports_no_torch():
    import subprocess
    import sys

    code = "import fedpbc.deployment.device.node_process, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
