from __future__ import annotations

import socket
import threading

import pytest

from fedpbc.deployment.address import LOOPBACK, Address
from fedpbc.deployment.ops.fault_proxy import FaultProxy


@pytest.fixture
def echo():
    """A server that echoes what it receives."""
    server = socket.create_server((LOOPBACK, 0))

    def serve(connection):
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)

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


def exchange(connection, text: bytes) -> bytes:
    connection.settimeout(10)
    connection.sendall(text)
    return connection.recv(100)


def connect(proxy):
    return socket.create_connection((proxy.address.host, proxy.address.port), timeout=10)


def test_connections_pass_until_the_link_is_cut(echo):
    proxy = FaultProxy(Address(LOOPBACK, echo))
    try:
        with connect(proxy) as connection:
            assert exchange(connection, b"one") == b"one"
            proxy.cut()
            # Open connections are dropped.
            connection.settimeout(10)
            assert connection.recv(100) == b""
        with connect(proxy) as connection:
            connection.settimeout(10)
            assert connection.recv(100) == b""
        proxy.restore()
        with connect(proxy) as connection:
            assert exchange(connection, b"two") == b"two"
    finally:
        proxy.close()
    with pytest.raises(OSError, match="refused"):
        connect(proxy)


def test_a_connection_ends_if_the_server_is_down(echo):
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        unused = probe.getsockname()[1]
    proxy = FaultProxy(Address(LOOPBACK, unused))
    with connect(proxy) as connection:
        connection.settimeout(10)
        assert connection.recv(100) == b""
    proxy.close()
