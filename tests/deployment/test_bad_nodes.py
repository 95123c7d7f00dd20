"""Malicious nodes: each is refused and logged, and the others keep training."""

from __future__ import annotations

import http.client
import math
import ssl
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.device.trainer_socket import TrainerSocket
from fedpbc.deployment.protocol.messages import Payload, TrainReply, Vector
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_node_key
from fedpbc.deployment.settings import task_of_client
from fedpbc.experiments.user_app import load_user_app
from tests.deployment.real_fleet import after_round, log_of, make_fleet, to_the_end, until
from tests.deployment.signatures import signed

pytestmark = pytest.mark.fleet


class MaliciousTrainer:
    """A trainer that sends wrong answers in certain rounds."""

    def __init__(self, fleet, client: int, changes) -> None:
        app = load_user_app(fleet.server / "app.py")
        make = partial(task_of_client, client=client, app=app, device="cpu")
        state = fleet.device_folder(client) / "state"
        self._honest = Trainer(client, state, make, lazy=True)
        self._changes, self._sent = changes, {}

    def handle(self, payload: Payload) -> Payload:
        reply = self._honest.handle(payload)
        if reply.kind != "answer":
            return reply
        answer = TrainReply.unpack(reply)
        self._sent[answer.round] = answer
        change = self._changes.get(answer.round)
        return reply if change is None else change(answer, self._sent)


def of_model(answer: TrainReply, model: Vector) -> Payload:
    return replace(answer, upload={"model": model}).pack()


def with_values(change):
    def changed(answer: TrainReply, _) -> Payload:
        return of_model(answer, Vector.of(change(answer.upload["model"].array())))

    return changed


def infinite(values: np.ndarray) -> np.ndarray:
    values[3] = math.inf
    return values


def not_a_number(values: np.ndarray) -> np.ndarray:
    values[-1] = math.nan
    return values


CHANGES = {
    1: with_values(lambda values: values[:-1]),
    2: with_values(not_a_number),
    3: with_values(infinite),
    4: with_values(lambda values: values.astype(np.float64)),
    6: lambda answer, sent: sent[5].pack(),
    7: lambda answer, sent: replace(answer, client=0).pack(),
    8: lambda answer, sent: replace(answer, job="another").pack(),
    9: lambda answer, sent: Payload({"kind": "nonsense"}),
    11: lambda answer, sent: of_model(answer, Vector("float32", bytes(2**28))),
}
LINES = [
    "vector of 179 values, not 180",
    "model is not finite",
    "vector of type float64, not float32",
    "reply for round 5; this is round 6",
    "replies as client 0, but is client 1",
    "reply for another job",
    "message of kind 'nonsense', not 'answer'",
]
ROUNDS = 14


def test_wrong_answers_do_not_count(tmp_path):
    """Wrong shape or type, not finite, replayed, of another client or job, invalid, 256 MB."""
    with make_fleet(tmp_path, clients=2, rounds=ROUNDS, seconds=40.0) as fleet:
        malicious = MaliciousTrainer(fleet, 1, CHANGES)
        fleet.start()
        fleet.supervisor.stop("trainer-1")
        with TrainerSocket(fleet.device_processes[1].socket, malicious.handle):
            table = to_the_end(fleet, 600)
        server_log = log_of(fleet, "server")
        gateway_log = log_of(fleet, "gateway")
        refused = {line["round"] for line in fleet.lines() if 1 in line["refused"]}
    assert table[:, 0].all()
    # Wrong answers never count; honest ones do, before and after.
    assert not table[sorted(CHANGES), 1].any()
    assert table[[0, 5, 10], 1].all()
    assert table[12:, 1].any()
    assert refused == set(CHANGES) - {11}
    for line in LINES:
        assert f"(client 1): {line}" in server_log
    # The large one did not even come in.
    line = "rejected client-1 (127.0.0.1): not accepted by the server (status 413)"
    assert line in gateway_log


def test_unauthorized_requests_are_rejected(tmp_path):
    """An unknown key, a wrong signature, plain HTTP, the control API: rejected and logged."""
    # A round of one client takes a third of a second, and a rejected device waits for ten.
    with make_fleet(tmp_path, clients=2, rounds=150, seconds=40.0) as fleet:
        # Client 1 has a key that the server does not know.
        key = fleet.device_folder(1) / "node.key"
        make_node_key(tmp_path, "other")
        valid = key.read_bytes()
        key.write_bytes((tmp_path / "other").read_bytes())
        settings = fleet.server / "fleet.toml"
        settings.write_text(settings.read_text().replace("wait_for = 2", "wait_for = 1"))
        fleet.server_processes = type(fleet.server_processes)(fleet.server, fleet.supervisor)
        fleet.start()
        after_round(fleet, 1)
        until(fleet, lambda: "unknown key" in log_of(fleet, "gateway"), 60)
        address = fleet.server_processes.listen
        # With client 0's public key, but not its private key.
        trust = ssl.create_default_context(cafile=fleet.server / "certificates/ca.crt")
        names = KeyDirectory(fleet.server / "keys").names_by_key()
        [public] = [k for k, name in names.items() if name == "client-0"]
        for path in ("/v1/fleet/pull-messages", "/v1/fleet/activate-node"):
            connection = http.client.HTTPSConnection(address.host, address.port, context=trust)
            head = signed(ec.generate_private_key(ec.SECP384R1()), public)
            connection.request("POST", path, b"", head)
            assert connection.getresponse().status == 401
            connection.close()
        # Without TLS; and with the request that runs code on devices.
        plain = http.client.HTTPConnection(address.host, address.port)
        plain.request("POST", "/v1/fleet/pull-messages", b"")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
        connection = http.client.HTTPSConnection(address.host, address.port, context=trust)
        connection.request("POST", "/v1/control/start-run", b"", {"flwr-public-key": public})
        assert connection.getresponse().status == 401
        connection.close()
        after_round(fleet, 3)
        assert all(line["active"] == [0] for line in fleet.lines())
        # With the valid key it is accepted, and catches up.
        key.write_bytes(valid)
        table = to_the_end(fleet, 300)
        gateway_log = log_of(fleet, "gateway")
    assert table[:, 0].all()
    assert table[-1, 1]
    for line in (
        "rejected 127.0.0.1: unknown key",
        "rejected 127.0.0.1: the signature does not match the key",
        "rejected 127.0.0.1: plain HTTP without TLS",
        "rejected 127.0.0.1: not signed by a node",
    ):
        assert line in gateway_log, line


def test_many_connections_do_not_keep_devices_out(tmp_path):
    with make_fleet(tmp_path, clients=2, rounds=5, seconds=40.0) as fleet:
        fleet.start()
        after_round(fleet, 1)
        address, ended = fleet.server_processes.listen, threading.Event()

        def flood() -> None:
            while not ended.wait(0.05):
                connection = http.client.HTTPConnection(address.host, address.port, timeout=5)
                try:
                    connection.request("POST", "/v1/fleet/push-object", bytes(10**6))
                    connection.getresponse()
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    connection.close()

        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            table = to_the_end(fleet, 300)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert table.all()
