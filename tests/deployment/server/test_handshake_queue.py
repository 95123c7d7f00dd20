"""When a connection begins TLS, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from fedpbc.deployment.server import handshake_queue
from fedpbc.deployment.server.connection_slots import ConnectionLimits, ConnectionSlots
from fedpbc.deployment.server.handshake_queue import AT_ONCE, PAUSE, RATE, HandshakeQueue


class Site:
    """A queue, the devices' ends of its connections, and what has happened to them."""

    def __init__(self, stack: ExitStack, **limits: int) -> None:
        self.slots = ConnectionSlots(ConnectionLimits(**limits))
        self.queue = HandshakeQueue(self.slots, self._begin, self._expire)
        self.begun: list[str] = []
        self.expired: list[str] = []
        self._stack = stack
        stack.callback(self.queue.close)

    def connect(self, address: str, sent: bytes = b"") -> socket.socket:
        """Let a device connect that has sent something already; returns its end."""
        device, accepted = socket.socketpair()
        self._stack.callback(device.close)
        accepted.setblocking(False)
        device.sendall(sent)
        dropped = self.queue.add(accepted, address)
        if dropped is not None:
            dropped.close()
        device.settimeout(5)
        return device

    def _begin(self, accepted, connection) -> None:
        self.begun.append(connection.address)
        self._stack.callback(accepted.close)

    def _expire(self, connection) -> None:
        self.expired.append(connection.address)


def run(check, **limits) -> None:
    """Run a check in an event loop."""

    async def main() -> None:
        with ExitStack() as stack:
            await check(Site(stack, **limits))

    asyncio.run(main())


def test_it_waits_for_the_first_bytes():
    async def check(site: Site) -> None:
        silent = site.connect("192.0.2.1")
        site.connect("192.0.2.2", b"hello")
        assert site.begun == ["192.0.2.2"]
        await asyncio.sleep(PAUSE)
        assert site.begun == ["192.0.2.2"]
        silent.sendall(b"hello")
        await asyncio.sleep(PAUSE)
        assert site.begun == ["192.0.2.2", "192.0.2.1"]

    run(check)


def test_a_flood_is_paced_and_others_are_next():
    async def check(site: Site) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(200):
            site.connect("192.0.2.1", b"hello")
        before = len(site.begun)
        site.connect("192.0.2.2", b"hello")
        while len(site.begun) < 100:
            await asyncio.sleep(PAUSE / 4)
        assert len(site.begun) <= AT_ONCE + RATE * (loop.time() - began)
        # After one of the flood at most, though many were queued before.
        assert site.begun.index("192.0.2.2") <= before + 1 < 100

    run(check)


def test_a_few_devices_do_not_wait():
    async def check(site: Site) -> None:
        for _ in range(AT_ONCE):
            site.connect("192.0.2.1", b"hello")
        assert len(site.begun) == AT_ONCE

    run(check)


def test_connections_one_after_another_are_paced_as_well():
    async def check(site: Site) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3 * AT_ONCE):
            site.connect("192.0.2.1", b"hello")
            await asyncio.sleep(0)
        assert len(site.begun) <= AT_ONCE + RATE * (loop.time() - began)
        while len(site.begun) < 3 * AT_ONCE:
            await asyncio.sleep(PAUSE / 4)
        assert loop.time() - began >= 2 * AT_ONCE / RATE - 0.01

    run(check)


def test_too_many_of_one_address_are_closed_at_once():
    async def check(site: Site) -> None:
        held = [site.connect("192.0.2.1") for _ in range(10)]
        assert [device.recv(1) for device in held[:7]] == [b""] * 7
        assert site.slots.waiting == 3
        for device in held[7:]:
            device.setblocking(False)
            with pytest.raises(BlockingIOError):
                device.recv(1)

    run(check, per_address=3)


def test_a_device_that_closes_is_forgotten():
    async def check(site: Site) -> None:
        site.connect("192.0.2.1").close()
        await asyncio.sleep(PAUSE)
        assert (site.slots.waiting, site.begun) == (0, [])

    run(check)


def test_who_sends_nothing_is_closed_in_time(monkeypatch):
    monkeypatch.setattr(handshake_queue, "HANDSHAKE_SECONDS", 0.1)
    monkeypatch.setattr(handshake_queue, "SWEEP_SECONDS", 0.05)

    async def check(site: Site) -> None:
        device = site.connect("192.0.2.1")
        device.setblocking(False)
        received = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(device, 1), 5)
        assert (received, site.slots.waiting, site.expired) == (b"", 0, ["192.0.2.1"])

    run(check)
