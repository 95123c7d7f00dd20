"""Which connection is dropped when there are too many."""

from __future__ import annotations

from fedpbc.deployment.server.connection_slots import (
    Connection,
    ConnectionLimits,
    ConnectionSlots,
    network_of,
)


def connection(address: str = "192.0.2.1", *, since: float = 0.0, progress: int = 0) -> Connection:
    return Connection(address, lambda: None, since=since, progress=progress)


def filled(slots: ConnectionSlots, *connections: Connection) -> list[Connection]:
    """Admit connections; returns those that were dropped."""
    return [dropped for each in connections if (dropped := slots.admit(each)) is not None]


def test_the_least_advanced_of_the_address_is_dropped():
    slots = ConnectionSlots(ConnectionLimits(per_address=3))
    handshakes = [connection(progress=1) for _ in range(2)]
    idle, late = connection(), connection()
    assert filled(slots, *handshakes, idle, late) == [idle]


def test_a_handshake_gets_its_time_but_no_more():
    slots = ConnectionSlots(ConnectionLimits(per_address=2))
    first, second = connection(progress=1), connection(progress=1)
    early, late = connection(since=1.0, progress=1), connection(since=2.1, progress=1)
    assert filled(slots, first, second, early) == [early]
    assert filled(slots, late) == [first]


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
