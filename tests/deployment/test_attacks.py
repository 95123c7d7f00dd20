"""Attacks on a gateway, with the figures that docs/deployment.md states."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from tests.deployment.attacks import (
    DEVICES,
    bodies_of_a_stranger,
    client_hello,
    flood_of_connections,
    many_paths,
    unasked_messages,
)

pytestmark = pytest.mark.fleet

floods = pytest.mark.parametrize(
    ("count", "first_bytes"), [(6000, b""), (2000, client_hello())], ids=["idle", "handshakes"]
)


@floods
def test_a_flood_from_elsewhere_does_not_shut_devices_out(count, first_bytes):
    figures = flood_of_connections(count, first_bytes, source="127.0.0.2")
    # In five times what they take without a flood, or half a minute.
    check_flood(figures, DEVICES * 3 // 4)


@floods
def test_a_flood_from_the_devices_own_address(count, first_bytes):
    figures = flood_of_connections(count, first_bytes)
    # It costs them attempts: the gateway cannot tell them from the flood.
    check_flood(figures, DEVICES // 4)


def check_flood(figures, least_admitted: int) -> None:
    assert int(str(figures["new devices admitted"]).split()[0]) >= least_admitted
    assert figures["open at the gateway"] < 1200
    assert figures["MB during"] < 200
    assert figures["MB after"] < figures["MB before"] + 40
    assert figures["log lines"] < 10


def test_a_stranger_with_a_public_key_sends_nothing():
    figures = bodies_of_a_stranger(10)
    assert figures["MB that reached the server"] == 0
    assert figures["log lines under the device's name"] == 0
    assert figures["gateway MB"] < 100


def test_two_thousand_paths_are_few_lines():
    assert many_paths(2000)["log lines"] <= 10


def test_messages_that_nobody_asked_for():
    figures = unasked_messages(10)
    assert figures["status of work for another device"] == [409]
    assert figures["status of a reply as another device"] == [409]
    assert 413 in figures["statuses of a reply of 60 MB"]
    assert figures["MB kept"] == 0
    assert figures["answers"] == 1
