from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from fedpbc.deployment.address import free_port
from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.deployment.ops.metrics_endpoint import metrics_served, metrics_text
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.errors import InputError
from tests.deployment.round_logs import round_line, write_log


def fetched(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def refused(port: int, path: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetched(port, path)
    caught.value.close()
    return caught.value.code


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_rounds_staleness_refusals_bytes_and_time_left(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0, 1]), round_line(1, [0])], connected=[0, 1])
    # A launcher serves them.
    with only_launcher("server", folder), metrics_served(folder, free_port()) as port:
        text = fetched(port)
        found = values(text)
        assert found["fedpbc_fleet_rounds_done"] == 2
        assert found['fedpbc_fleet_client_staleness_rounds{client="0"}'] == 1
        assert found['fedpbc_fleet_client_staleness_rounds{client="1"}'] == 2
        assert found['fedpbc_fleet_client_answered{client="1"}'] == 0
        assert found['fedpbc_fleet_client_refused_total{client="0"}'] == 0
        assert found["fedpbc_fleet_seconds_left"] > 0
        assert "# TYPE fedpbc_fleet_client_refused_total counter" in text
        assert refused(port, "/etc/passwd") == 404
        (folder / "rounds.jsonl").write_text("{}\n")
        assert refused(port, "/metrics") == 503
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_who_has_left_raises_no_alarm(tmp_path):
    lines = [round_line(0, [0, 1]), round_line(1, [0]) | {"left": [1]}]
    text = metrics_text(FleetLog(write_log(tmp_path, lines, clients=2)).status())
    assert values(text)["fedpbc_fleet_clients"] == 1
    assert 'client="1"' not in text


def test_off_by_default_and_a_taken_port_is_named(tmp_path):
    folder = write_log(tmp_path, [])
    with metrics_served(folder, 0) as port:
        assert port is None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with (
            pytest.raises(
                InputError, match=f"fleet.metrics_port is {number}, but should be a port"
            ),
            metrics_served(folder, number),
        ):
            pass
