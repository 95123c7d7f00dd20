"""Attacks on a gateway of its own, on loopback, with figures.

``python -m tests.deployment.attacks`` runs them all, or those that are named:

connections  many plain TCP connections from one address, held open; do new devices get in?
handshakes   the same, but each begins a TLS handshake and stops
…-elsewhere  both, from another address than the devices'
bodies       large bodies of a stranger who knows a device's public key
paths        one request for each of 2,000 paths, by a stranger
unasked      a device that sends messages of its own making
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import re
import resource
import socket
import ssl
import statistics
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from fedpbc.deployment.address import LOOPBACK, free_port
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from tests.deployment.echo_server import echo_server
from tests.deployment.signatures import private_key, signed
from tests.processes import PATIENCE, child, wait_until

DEVICES = 60
REPLY = 40_000_000
"""Bytes of a reply that the gateway lets pass: a model of ten million parameters."""


class Target:
    """A gateway as a process, a server behind it, and the keys of devices."""

    def __init__(self, folder: Path, server: Any, upstream: str) -> None:
        self.upstream = upstream
        self.folder, self.server, self.port = folder, server, free_port()
        names = KeyDirectory(folder / "keys").names_by_key()
        self.public = {name: key for key, name in names.items()}
        self.trust = ssl.create_default_context(cafile=folder / "certificates/ca.crt")
        self.process: Any = None

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "fedpbc.deployment.server.gateway"),
            *("--listen", f"{LOOPBACK}:{self.port}"),
            *("--server", self.upstream),
            *("--largest-answer", str(REPLY)),
            *("--certificates", str(self.folder / "certificates")),
            *("--keys", str(self.folder / "keys")),
        ]

    def memory(self) -> int:
        """Megabytes that the gateway's process occupies."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        assert found is not None
        return int(found[1]) // 1000

    def connections(self) -> int:
        """How many files the gateway has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def log(self) -> list[str]:
        return (self.folder / "gateway.log").read_text(errors="replace").splitlines()

    def ask(self, path: str, body: bytes, headers: dict[str, str], timeout: float = 20.0) -> int:
        """Send a request; returns the response's status."""
        connection = http.client.HTTPSConnection(
            LOOPBACK, self.port, context=self.trust, timeout=timeout
        )
        try:
            connection.request("POST", f"/v1/fleet/{path}", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def head(self, name: str) -> dict[str, str]:
        """A device's own signature."""
        return signed(private_key(self.folder / "keys" / name), self.public[name])

    def forged_head(self, name: str) -> dict[str, str]:
        """The public key of a device, with the signature of someone else."""
        return signed(ec.generate_private_key(ec.SECP384R1()), self.public[name])

    def cpu_seconds(self) -> float:
        """What the gateway's process has used of the processor so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def admitted(self, devices: int = DEVICES, patience: float = PATIENCE) -> list[float]:
        """After how many seconds devices that connect now get an answer, unless it is too late.

        As Flower's nodes, they try again every second.
        """
        seconds: list[float] = []
        began = time.monotonic()
        end = began + patience

        def connect(name: str) -> None:
            while time.monotonic() < end:
                with suppress(OSError, http.client.HTTPException):
                    left = max(end - time.monotonic(), 0.1)
                    assert self.ask("activate-node", b"", self.head(name), left) == 200
                    seconds.append(time.monotonic() - began)
                    return
                time.sleep(1.0)

        threads = [
            threading.Thread(target=connect, args=(f"client-{i % len(self.public)}",))
            for i in range(devices)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(seconds)


@contextmanager
def attacked_gateway(devices: int = 20, serve: Any = None) -> Iterator[Target]:
    """A gateway with so many devices' keys, before a server that echoes, or ``serve(folder)``."""
    with TemporaryDirectory(prefix="fedpbc-attack-") as name, ExitStack() as stack:
        folder = Path(name)
        make_certificates(folder / "certificates", [LOOPBACK], days=3)
        for client in range(devices):
            make_node_key(folder / "keys", f"client-{client}")
        if serve is None:
            server = stack.enter_context(echo_server(folder / "certificates"))
            target = Target(folder, server, f"{LOOPBACK}:{server.server_address[1]}")
        else:
            server = stack.enter_context(serve(folder))
            target = Target(folder, server, f"unix:{folder / 'server'}")
        log = stack.enter_context((folder / "gateway.log").open("wb"))
        target.process = stack.enter_context(child(target.command(), stdout=log, stderr=log))
        wait_until(lambda: len(target.admitted(1)) == 1)
        yield target


def flood_of_connections(
    count: int, first_bytes: bytes = b"", source: str = LOOPBACK
) -> dict[str, object]:
    """Hold TCP connections, as many as the gateway accepts; new devices connect meanwhile."""
    with attacked_gateway(serve=fleet_server) as target:
        before = target.memory()
        # On a busy machine devices need long without any flood, too.
        calm = max(target.admitted(), default=PATIENCE)
        flood = Flood(target.port, source, count, first_bytes)
        with flood:
            began, used, opened = time.monotonic(), target.cpu_seconds(), flood.opened.value
            admitted = target.admitted(patience=max(30.0, 5 * calm))
            # Longer than the devices took: the flood goes on.
            time.sleep(max(10.0 - (time.monotonic() - began), 0.0))
            seconds = time.monotonic() - began
            used, opened = target.cpu_seconds() - used, flood.opened.value - opened
            during, files = target.memory(), target.connections()
        wait_until(lambda: target.connections() < 50)
        # The gateway returns memory every ten seconds.
        time.sleep(12.0)
        return {
            "connections": count,
            "opened per second": round(opened / seconds),
            "new devices admitted": f"{len(admitted)} of {DEVICES}",
            "in 10 s": sum(each <= 10.0 for each in admitted),
            "all without a flood s": round(calm, 1),
            "median s": round(statistics.median(admitted or [math.inf]), 1),
            "gateway CPU %": round(100 * used / seconds),
            "open at the gateway": files,
            "MB before": before,
            "MB during": during,
            "MB after": target.memory(),
            "log lines": len(target.log()),
        }


class Flood:
    """A process that holds connections open, and replaces those that the gateway closes."""

    def __init__(self, port: int, source: str, count: int, first_bytes: bytes) -> None:
        context = get_context("spawn")
        self._ended, self._is_full = context.Event(), context.Event()
        self.opened = context.Value("q", 0)
        arguments = (port, source, count, first_bytes, self._is_full, self._ended, self.opened)
        self._process = context.Process(target=hold_connections, args=arguments, daemon=True)

    def __enter__(self) -> Flood:
        self._process.start()
        assert self._is_full.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._process.join()


def hold_connections(
    port: int,
    source: str,
    count: int,
    first_bytes: bytes,
    is_full: Any,
    ended: Any,
    opened: Any,
) -> None:
    """Open connections until so many are open, then one for each that was closed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + 1000), most))
    held: list[socket.socket] = []
    while not ended.is_set():
        if len(held) >= count:
            closed = [each for each in held if is_closed(each)]
            for each in closed:
                each.close()
            gone = set(map(id, closed))
            held = [each for each in held if id(each) not in gone]
            if not closed:
                ended.wait(0.01)
                continue
        with suppress(OSError):
            connection = socket.create_connection((LOOPBACK, port), 5, (source, 0))
            held.append(connection)
            opened.value += 1
            connection.sendall(first_bytes)
            connection.setblocking(False)
        if opened.value >= count:
            is_full.set()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def client_hello() -> bytes:
    """The beginning of a TLS handshake, to which a server must reply with a signature."""
    sent = ssl.MemoryBIO()
    stranger = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="a")
    with suppress(ssl.SSLWantReadError):
        stranger.do_handshake()
    return sent.read()


def bodies_of_a_stranger(count: int) -> dict[str, object]:
    """Large bodies under a device's public key, without its private key."""
    with attacked_gateway() as target:
        before, statuses = target.server.received, []
        for _ in range(count):
            with suppress(OSError):
                head = target.forged_head("client-0")
                statuses.append(target.ask("push-object", bytes(33_000_000), head))
        names = sum("client-0" in line for line in target.log())
        return {
            "bodies": count,
            "statuses": sorted(set(statuses)),
            "MB that reached the server": (target.server.received - before) // 1_000_000,
            "log lines under the device's name": names,
            "gateway MB": target.memory(),
        }


def many_paths(count: int) -> dict[str, object]:
    """One request for each of many paths."""
    with attacked_gateway() as target:
        before = len(target.log())
        for number in range(count):
            with suppress(OSError):
                target.ask(f"x/{number}", b"", target.forged_head("client-0"))
        return {"paths": count, "log lines": len(target.log()) - before}


@contextmanager
def fleet_server(folder: Path) -> Iterator[Any]:
    """The server's side of the Fleet API; yields its mailbox."""
    from fedpbc.deployment.server.fleet_api import FleetApi
    from fedpbc.deployment.server.fleet_endpoint import FleetEndpoint
    from fedpbc.deployment.server.mailbox import Mailbox

    mailbox = Mailbox()
    api = FleetApi(mailbox, KeyDirectory(folder / "keys"), REPLY)
    with FleetEndpoint(folder / "server", api, mailbox):
        yield mailbox


def unasked_messages(count: int) -> dict[str, object]:
    """A device sends work to another, replies to nothing, and one reply far above the limit."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
    from flwr.proto.node_pb2 import Node

    from fedpbc.deployment.protocol.flower_messages import piece_name
    from fedpbc.deployment.protocol.messages import Payload
    from fedpbc.deployment.security.node_identity import node_number

    with attacked_gateway(serve=fleet_server) as target:
        node = node_number(b64decode(target.public["client-0"]))
        other = node_number(b64decode(target.public["client-1"]))

        def push(metadata: Metadata, *pieces: bytes) -> list[int]:
            """Announce a message and upload its pieces."""
            tree = ObjectTree(children=[ObjectTree(object_id=piece_name(p)) for p in pieces])
            request = PushMessagesRequest(
                node=Node(node_id=node),
                messages_list=[Message(metadata=metadata)],
                message_object_trees=[tree] if pieces else [],
            )
            statuses = [ask("push-messages", request)]
            for piece in pieces:
                upload = PushObjectRequest(
                    node=Node(node_id=node),
                    object_id=piece_name(piece),
                    object_content=piece,
                    session_id=metadata.reply_to_message_id,
                )
                statuses.append(ask("push-object", upload))
            return statuses

        def ask(path: str, request: Any) -> int:
            return target.ask(path, request.SerializeToString(), target.head("client-0"))

        theirs = target.server.send(other, Payload({"kind": "hello"}), 600.0)
        ours = target.server.send(node, Payload({"kind": "hello"}), 600.0)
        ask("pull-messages", PullMessagesRequest(node=Node(node_id=node)))
        work = push(Metadata(src_node_id=1, dst_node_id=other, message_type="train"))
        as_other = push(Metadata(src_node_id=other, dst_node_id=1, reply_to_message_id=theirs))
        piece = 15_000_000
        large = [bytes([number]) * piece for number in range(4)]
        too_large = push(Metadata(reply_to_message_id=ours), *large)
        accepted = 0
        for number in range(count):
            # Announcing other pieces must not reset how much was taken.
            pieces = [bytes([number, k]) * (piece // 2) for k in range(2)]
            accepted += piece * push(Metadata(reply_to_message_id=ours), *pieces)[1:].count(200)
        pending = target.server.message_for(ours, node)
        kept = sum(map(len, pending.reply_pieces.values()))
        return {
            "status of work for another device": work,
            "status of a reply as another device": as_other,
            "statuses of a reply of 60 MB": sorted(set(too_large)),
            "MB taken after the reply was complete": accepted // 1_000_000,
            "MB kept": kept // 1_000_000,
            "answers": len(target.server.collect([ours, theirs])),
        }


ATTACKS = {
    "connections": lambda: flood_of_connections(6000),
    "connections-elsewhere": lambda: flood_of_connections(6000, source="127.0.0.2"),
    "handshakes": lambda: flood_of_connections(2000, client_hello()),
    "handshakes-elsewhere": lambda: flood_of_connections(2000, client_hello(), "127.0.0.2"),
    "bodies": lambda: bodies_of_a_stranger(10),
    "paths": lambda: many_paths(2000),
    "unasked": lambda: unasked_messages(10),
}


def main() -> None:
    """Run attacks, and print what they achieved."""
    parser = argparse.ArgumentParser(prog="python -m tests.deployment.attacks")
    parser.add_argument("attacks", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    for name in parser.parse_args().attacks or ATTACKS:
        figures = ", ".join(f"{what}: {value}" for what, value in ATTACKS[name]().items())
        sys.stdout.write(f"{name}: {figures}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
