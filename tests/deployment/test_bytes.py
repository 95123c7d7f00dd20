"""The bytes that a server logs, against those that its devices' links carried."""

from __future__ import annotations

import json

import pytest

from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.settings import read_fleet
from tests.deployment.fake_network import simulation_of

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from tests.deployment.real_fleet import APP, make_fleet, to_the_end

pytestmark = pytest.mark.fleet

ROUNDS, CLIENTS = 4, 2
LARGE = APP.replace("16", "50000")
"""550,004 parameters, so that vectors are most of what is sent."""
PER_MESSAGE, AT_MOST = 20_000, 0.05
"""Framing: Flower's records, HTTP and TLS, for a message and the polls for it; of all bytes."""


@pytest.mark.parametrize(
    "algorithm",
    ["fedpbc", "scaffold", {"name": "mifa", "memory": "client"}],
    ids=["fedpbc", "scaffold", "mifa"],
)
def test_the_logged_bytes_are_those_of_the_links(tmp_path, algorithm):
    with make_fleet(
        tmp_path, clients=CLIENTS, rounds=ROUNDS, seconds=60.0, algorithm=algorithm, app=LARGE
    ) as fleet:
        fleet.start()
        table = to_the_end(fleet, 400)
        # Also of the devices' connections that carry no messages.
        carried = {
            "up": sum(proxy.bytes_up for proxy in fleet.proxies),
            "down": sum(proxy.bytes_down for proxy in fleet.proxies),
        }
        lines, status = fleet.lines(), FleetLog(fleet.server).status()
        settings = read_fleet(fleet.server / "fleet.toml")
    assert table.all()
    expected = simulation_of(settings.whole_task(), algorithm, lines).server
    figures = {}
    for way, total in (("up", expected.bytes_up), ("down", expected.bytes_down)):
        assert sum(line[f"bytes_{way}"] for line in lines) == total
        assert getattr(status, f"bytes_{way}") == total
        figures[way] = {"vectors": total, "carried": carried[way]}
    print(json.dumps(figures))
    for way, figure in figures.items():
        framing = figure["carried"] - figure["vectors"]
        assert 0 < framing < ROUNDS * CLIENTS * PER_MESSAGE + AT_MOST * figure["vectors"], way
