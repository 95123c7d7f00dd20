"""Real processes over loopback, with TLS and node keys."""

from __future__ import annotations

import pytest

from fedpbc.deployment.ops.process_sessions import processes_in

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from tests.deployment.real_fleet import after_round, make_fleet, to_the_end, until

# Many processes, each of which imports much: on a busy machine that takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_fleet_with_an_outage_equals_the_simulator(tmp_path):
    with make_fleet(tmp_path, clients=2, rounds=12, seconds=20.0) as fleet:
        fleet.start()
        after_round(fleet, 1)
        fleet.proxies[1].cut()
        until(fleet, lambda: any(1 not in line["active"] for line in fleet.lines()), 240)
        fleet.proxies[1].restore()
        table = to_the_end(fleet)
        sessions = [fleet.supervisor.service(name).pid for name in ("server", "node-0")]
    assert not table[1:, 1].all()
    assert table[:, 0].any()
    assert table[:, 1].any()
    # The server has written its models.
    for name in ("server", "averaged", "reported"):
        assert (fleet.server / "models" / f"{name}.safetensors").is_file()
    assert not processes_in([session for session in sessions if session])
