"""Which connection is dropped when there are too many."""

from __future__ import annotations

from fedpbc.deployment.server.connection_slots import (
    Connection,
    ConnectionLimits,
    ConnectionSlots,
    network_of,
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def connection(address: str = "192.0.2.1", *, since: float = 0.0) -> Connection:
    return Connection(address, lambda: None, since=since)


def filled(slots: ConnectionSlots, *connections: Connection) -> list[Connection]:
    """Admit connections; returns those that were dropped."""
    return [dropped for each in connections if (dropped := slots.admit(each)) is not None]


def in_turn(slots: ConnectionSlots, count: int) -> list[Connection | None]:
    return [slots.next_turn() for _ in range(count)]


def test_who_has_sent_nothing_is_dropped_before_who_is_queued():
    slots = ConnectionSlots(ConnectionLimits(per_address=3))
    queued, silent, late = (connection() for _ in range(3))
    assert slots.admit(queued, has_sent=True) is None
    assert filled(slots, silent, late) == []
    assert slots.admit(connection(), has_sent=True) is silent
    slots.queue(late)
    newest = connection()
    assert slots.admit(newest, has_sent=True) is newest


def test_a_handshake_gets_its_time_but_no_more():
    clock = Clock()
    slots = ConnectionSlots(ConnectionLimits(per_address=2), clock)
    first, second, early, late = (connection() for _ in range(4))
    assert not slots.admit(first, has_sent=True)
    assert not slots.admit(second, has_sent=True)
    # Its time begins with its turn, not while it is queued.
    clock.time = 10.0
    assert in_turn(slots, 3) == [first, second, None]
    clock.time = 12.0
    assert slots.admit(early, has_sent=True) is early
    clock.time = 12.1
    assert slots.admit(late, has_sent=True) is first


def test_handshakes_begin_in_turn_by_address():
    slots = ConnectionSlots(ConnectionLimits())
    flood = [connection() for _ in range(100)]
    for each in flood:
        slots.admit(each, has_sent=True)
    assert in_turn(slots, 2) == flood[:2]
    device, other = connection("198.51.100.1"), connection("203.0.113.1")
    for each in (device, other):
        slots.admit(each, has_sent=True)
    # Both before the flood's fourth, though 98 were queued before them.
    assert in_turn(slots, 5) == [flood[2], device, other, flood[3], flood[4]]


def test_who_is_gone_has_no_turn():
    slots = ConnectionSlots(ConnectionLimits())
    first, second = connection(), connection("198.51.100.1")
    for each in (first, second):
        slots.admit(each, has_sent=True)
    slots.release(first)
    assert in_turn(slots, 2) == [second, None]


def test_who_waits_too_long_for_a_turn_expires():
    clock = Clock()
    slots = ConnectionSlots(ConnectionLimits(), clock)
    served, queued, silent, young = (connection(since=since) for since in (0.0, 1.0, 2.0, 9.0))
    slots.admit(served, has_sent=True)
    assert slots.next_turn() is served
    slots.admit(queued, has_sent=True)
    assert filled(slots, silent, young) == []
    clock.time = 12.0
    assert set(slots.expired(10.0)) == {queued, silent}


def test_a_flood_costs_only_its_own_address():
    slots = ConnectionSlots(ConnectionLimits(waiting=10, per_address=8))
    device = connection("198.51.100.1")
    flood = [connection() for _ in range(50)]
    assert device not in filled(slots, device, *flood)
    others = [connection(f"203.0.113.{k}") for k in range(5)]
    assert {each.address for each in filled(slots, *others)} == {"192.0.2.1"}


def test_a_key_that_holds_all_connections_makes_room():
    slots = ConnectionSlots(ConnectionLimits(total=10, per_key=9))
    held = [connection() for _ in range(9)]
    for each in held:
        assert slots.admit(each) is None
        assert slots.verify(each, "a key") is None
    assert filled(slots, connection(), connection()) == [held[0]]
    assert slots.verified == 8


def test_a_key_has_a_limit_of_its_own():
    slots = ConnectionSlots(ConnectionLimits(per_key=2))
    held = [connection() for _ in range(3)]
    dropped = []
    for each in held:
        slots.admit(each)
        dropped.append(slots.verify(each, "a key"))
    assert dropped == [None, None, held[0]]


def test_what_was_released_is_forgotten():
    slots = ConnectionSlots(ConnectionLimits())
    each = connection()
    slots.admit(each)
    slots.release(each)
    slots.release(each)
    slots.admit(each)
    slots.verify(each, "a key")
    slots.release(each)
    assert (slots.waiting, slots.verified) == (0, 0)


def test_hosts_of_one_ipv6_network_count_as_one():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::"
