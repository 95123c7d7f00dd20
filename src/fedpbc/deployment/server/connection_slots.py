"""Which connections the gateway keeps and serves, and which it drops. No I/O here.

A connection waits until a device's key has signed a request on it. Whoever reaches the port can
open connections; a key is needed for one that does not wait. So waiting ones are dropped first, of
the address that has most of them: a handshake that has taken longer than a device's, else one that
has sent nothing, else the new one. Handshakes begin in turn by address. So a device that connects
from another address than a flood does not notice it, and one at the same address has a fair chance
with each attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

__all__ = ["Connection", "ConnectionLimits", "ConnectionSlots", "network_of"]

GRACE = 2.0
"""Seconds that a device needs, at most, from the beginning of TLS to its first request."""
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
        key: the device's, once a request with its signature was received.
        is_dropped: whether it is closed in favour of another.
        since: when it was accepted.
        began: when its handshake began, if it has.
        network: what counts as one address.
    """

    address: str
    close: Callable[[], object]
    key: str | None = None
    is_dropped: bool = False
    since: float = field(default_factory=time.monotonic)
    began: float = 0.0
    network: str = field(init=False)

    def __post_init__(self) -> None:
        self.network = network_of(self.address)


@dataclass
class Group:
    """The waiting connections of one address; dictionaries keep the order in which they came."""

    silent: dict[Connection, None] = field(default_factory=dict)
    queued: dict[Connection, None] = field(default_factory=dict)
    begun: dict[Connection, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.silent) + len(self.queued) + len(self.begun)

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; returns whether it was here."""
        for same in (self.begun, self.queued, self.silent):
            if connection in same:
                del same[connection]
                return True
        return False

    def victim(self, now: float) -> Connection:
        """The one that is dropped if there are too many."""
        slowest = next(iter(self.begun), None)
        if slowest is not None and now - slowest.began > GRACE:
            return slowest
        if self.silent:
            return next(iter(self.silent))
        return next(reversed(self.queued or self.begun))


class ConnectionSlots:
    """The connections that are open.

    Example:
        >>> slots = ConnectionSlots(ConnectionLimits(per_address=1))
        >>> first, second = (Connection("192.0.2.1", lambda: None) for _ in range(2))
        >>> slots.admit(first) is None, slots.admit(second) is first
        (True, True)
    """

    def __init__(self, limits: ConnectionLimits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._now = limits, now
        self._waiting: dict[str, Group] = {}
        # Networks with queued connections: the first has the next turn.
        self._turns: dict[str, None] = {}
        self._verified: dict[str, dict[Connection, None]] = {}
        self.waiting = self.verified = 0

    def admit(self, connection: Connection, *, has_sent: bool = False) -> Connection | None:
        """Add a connection; returns the one that must be closed for it, if any."""
        group = self._waiting.setdefault(connection.network, Group())
        group.silent[connection] = None
        self.waiting += 1
        if has_sent:
            self.queue(connection)
        if len(group) > self._limits.per_address:
            return self._drop_waiting(group)
        if self.waiting + self.verified > self._limits.total and self._verified:
            most = max(self._verified.values(), key=len)
            if len(most) > ENOUGH:
                return self._drop_oldest(most)
        if self.waiting > self._limits.waiting or self.waiting + self.verified > self._limits.total:
            return self._drop_waiting(max(self._waiting.values(), key=len))
        return None

    def queue(self, connection: Connection) -> None:
        """Note that something was received: a handshake may begin."""
        group = self._waiting.get(connection.network)
        if group is not None and connection in group.silent:
            del group.silent[connection]
            group.queued[connection] = None
            self._turns.setdefault(connection.network, None)

    @property
    def has_turns(self) -> bool:
        """Whether a handshake waits for its turn."""
        return bool(self._turns)

    def next_turn(self) -> Connection | None:
        """Return the connection whose handshake begins now: of each address in turn, the first."""
        if not self._turns:
            return None
        network = next(iter(self._turns))
        del self._turns[network]
        group = self._waiting[network]
        connection = next(iter(group.queued))
        del group.queued[connection]
        group.begun[connection] = None
        connection.began = self._now()
        if group.queued:
            self._turns[network] = None
        return connection

    def expired(self, seconds: float) -> list[Connection]:
        """Connections that were accepted so long ago, and have not had their turn."""
        latest = self._now() - seconds
        late = []
        for group in self._waiting.values():
            for same in (group.silent, group.queued):
                for connection in same:
                    if connection.since > latest:
                        break
                    late.append(connection)
        return late

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
            self._release_waiting(connection)
        elif connection in (same := self._verified.get(connection.key, {})):
            del same[connection]
            self.verified -= 1
            if not same:
                del self._verified[connection.key]

    def _release_waiting(self, connection: Connection) -> None:
        group = self._waiting.get(connection.network)
        if group is None or not group.remove(connection):
            return
        self.waiting -= 1
        if not group.queued:
            self._turns.pop(connection.network, None)
        if not len(group):
            del self._waiting[connection.network]

    def _drop_oldest(self, same: dict[Connection, None]) -> Connection:
        oldest = next(iter(same))
        self.release(oldest)
        return oldest

    def _drop_waiting(self, group: Group) -> Connection:
        dropped = group.victim(self._now())
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
