"""Which connections the gateway keeps, and which it drops when there are too many. No I/O here.

A connection waits until a device's key has signed a request on it. Whoever reaches the port can
open connections; a key is needed for one that does not wait. So waiting ones are dropped first, of
the address that has most of them: one that has waited longer than a device takes, or else the one
that has come least far. A device that connects from another address than a flood does not notice
it, and one at the same address has a fair chance with each attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

__all__ = ["Connection", "ConnectionLimits", "ConnectionSlots", "network_of"]

GRACE = 2.0
"""Seconds that a device needs, at most, from its connection to its first request."""
ENOUGH = 4
"""Connections with one key, of which none is dropped in favour of a new one without."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections may be open at a time.

    Attributes:
        total: all together.
        waiting: those without a device's key.
        per_address: those without a device's key from one address, or one IPv6 network.
        per_key: those with the same key; a device opens one or two.
    """

    total: int = 5000
    waiting: int = 1024
    per_address: int = 512
    per_key: int = 8


@dataclass(eq=False)
class Connection:
    """One connection.

    Attributes:
        address: where it comes from.
        close: ends it.
        progress: 0 at first, 1 when something was received, 2 after the TLS handshake.
        key: the device's, once a request with its signature was received.
        is_dropped: whether it is closed in favour of another.
        since: when it was accepted.
    """

    address: str
    close: Callable[[], object]
    progress: int = 0
    key: str | None = None
    is_dropped: bool = False
    since: float = field(default_factory=time.monotonic)


class ConnectionSlots:
    """The connections that are open.

    Example:
        >>> slots = ConnectionSlots(ConnectionLimits(per_address=1))
        >>> first, second = (Connection("192.0.2.1", lambda: None) for _ in range(2))
        >>> slots.admit(first) is None, slots.admit(second) is first
        (True, True)
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        # Dictionaries keep the order in which connections came.
        self._waiting: dict[str, dict[Connection, None]] = {}
        self._verified: dict[str, dict[Connection, None]] = {}
        self.waiting = self.verified = 0

    def admit(self, connection: Connection) -> Connection | None:
        """Add a connection; returns the one that must be closed for it, if any."""
        group = network_of(connection.address)
        same = self._waiting.setdefault(group, {})
        same[connection] = None
        self.waiting += 1
        if len(same) > self._limits.per_address:
            return self._drop_waiting(same)
        if self.waiting + self.verified > self._limits.total and self._verified:
            most = max(self._verified.values(), key=len)
            if len(most) > ENOUGH:
                return self._drop_oldest(most)
        if self.waiting > self._limits.waiting or self.waiting + self.verified > self._limits.total:
            return self._drop_waiting(max(self._waiting.values(), key=len))
        return None

    def verify(self, connection: Connection, key: str) -> Connection | None:
        """Note that a device has proved to have its key; returns which one must be closed."""
        self.release(connection)
        connection.key = key
        same = self._verified.setdefault(key, {})
        same[connection] = None
        self.verified += 1
        return self._drop_oldest(same) if len(same) > self._limits.per_key else None

    def release(self, connection: Connection) -> None:
        """Forget a connection, if it is still here."""
        if connection.key is None:
            groups, group = self._waiting, network_of(connection.address)
        else:
            groups, group = self._verified, connection.key
        same = groups.get(group, {})
        if connection in same:
            del same[connection]
            if connection.key is None:
                self.waiting -= 1
            else:
                self.verified -= 1
        if not same:
            groups.pop(group, None)

    def _drop_oldest(self, same: dict[Connection, None]) -> Connection:
        oldest = next(iter(same))
        self.release(oldest)
        return oldest

    def _drop_waiting(self, same: dict[Connection, None]) -> Connection:
        oldest, newest = next(iter(same)), next(reversed(same))
        if newest.since - oldest.since > GRACE:
            dropped = oldest
        else:
            # The newest comes last, but before those that are in a handshake.
            dropped = next((each for each in same if each.progress == 0), newest)
        self.release(dropped)
        return dropped


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the network, since a single host has many addresses.

    Example:
        >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3::4"), network_of("?")
        ('192.0.2.7', '2001:db8:1:2::', '?')
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address
