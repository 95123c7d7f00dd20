from __future__ import annotations

import socket
import threading

import pytest

from fedpbc.deployment.address import HERE, Address
from fedpbc.deployment.ops.fault_proxy import FaultProxy


@pytest.fixture
def echo():
    """Says back what it hears."""
    server = socket.create_server((HERE, 0))

    def serve(connection):
        with connection:
            while piece := connection.recv(100):
                connection.sendall(piece)

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def said(connection, text: bytes) -> bytes:
    connection.settimeout(10)
    connection.sendall(text)
    return connection.recv(100)


def reach(gate):
    return socket.create_connection((gate.address.host, gate.address.port), timeout=10)


def test_a_gate_lets_through_until_it_is_cut(echo):
    gate = FaultProxy(Address(HERE, echo))
    try:
        with reach(gate) as connection:
            assert said(connection, b"one") == b"one"
            gate.cut()
            # What was under way is lost.
            connection.settimeout(10)
            assert connection.recv(100) == b""
        with reach(gate) as connection:
            connection.settimeout(10)
            assert connection.recv(100) == b""
        gate.mend()
        with reach(gate) as connection:
            assert said(connection, b"two") == b"two"
    finally:
        gate.close()
    with pytest.raises(OSError, match="refused"):
        reach(gate)


def test_a_server_that_is_down_is_a_connection_that_ends(echo):
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        nobody = probe.getsockname()[1]
    gate = FaultProxy(Address(HERE, nobody))
    with reach(gate) as connection:
        connection.settimeout(10)
        assert connection.recv(100) == b""
    gate.close()
