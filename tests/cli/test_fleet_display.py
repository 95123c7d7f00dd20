"""The display of a fleet's status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rich.console import Console

from fedpbc.cli.fleet_display import fleet_table, watch
from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.ops.status_text import summary
from fedpbc.text import format_duration
from tests.commandline import fedpbc, ran, refused
from tests.deployment.round_logs import round_line, write_log


def test_of_thousands_the_longest_absent_are_shown(tmp_path):
    lines = [round_line(t, range(0, 2000, t + 1)) for t in range(3)]
    folder = write_log(tmp_path, lines, clients=2000, connected=range(2000))
    status = FleetLog(folder).status(1030.0)
    absent = status.longest_absent(30)
    assert [client.staleness for client in absent] == [3] * 30
    assert [client.client for client in absent][:3] == [1, 5, 7]
    console = Console(width=80, record=True, force_terminal=False)
    console.print(fleet_table(status))
    output = console.export_text()
    assert len(output.splitlines()) < 40
    assert "the 30 of 2,000 clients absent longest" in output


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_truncated(tmp_path, width):
    lines = [round_line(t, [0]) for t in range(1000, 1003)]
    for t, line in enumerate(lines):
        line["round"] = t
    folder = write_log(tmp_path, lines, connected=[0, 1], rounds=2000)
    big = 18446744073709551615
    (folder / "heard.json").write_text(json.dumps({0: {"node": big, "at": 1.0}}))
    status = FleetLog(folder).status(now=99999.0)
    for links, words in (
        (None, ["answered", "never connected"]),
        ({0: True, 1: False}, ["cut", "up"]),
    ):
        console = Console(width=width, record=True, force_terminal=False)
        console.print(fleet_table(status, width=width, links=links))
        output = console.export_text()
        assert all(len(line) <= width for line in output.splitlines())
        for text in (*words, "client", "refused", "contact", "rounds", "stale-", "24.7 h"):
            assert text in output
        assert (str(big) in output) == (width == 120 or links is not None)
        assert str(big)[:11] in output


def test_a_server_that_seems_to_hang_is_reported(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0])])
    console = Console(width=80, record=True)
    with only_launcher("server", folder):
        console.print(fleet_table(FleetLog(folder).status(now=1010.0 + 600)))
    assert "no round has ended for 10 min: does the server hang?" in console.export_text()


def test_the_command_ends_with_the_next_commands(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0, 3])], connected=[0, 3])
    with only_launcher("server", folder):
        output = ran("fleet", "status", folder).out
    assert "fedpbc: 1 of 10 rounds done; 2 of 4 clients answered in the last" in output
    assert output.splitlines()[-1] == (
        f"next: 'fedpbc fleet status {folder} --watch' keeps this up to date"
    )
    write_log(folder, [round_line(t, [0]) for t in range(10)])
    over = ran("fleet", "status", folder, "--watch").out.splitlines()
    assert over[0].startswith("fedpbc: 10 of 10 rounds done")
    assert f"fedpbc fleet check {folder}" in over[1]
    assert f"fedpbc compare --trace {folder}" in over[2]


def test_bytes_are_shown_and_everything_is_in_the_json(tmp_path):
    folder = write_log(tmp_path, [round_line(t, [0, 3]) for t in range(2)], connected=[0, 3])
    assert "vectors: 1.6 kB received, 3.2 kB sent" in ran("fleet", "status", folder).out
    status = json.loads(ran("fleet", "status", folder, "--json").out)
    assert (status["bytes_up"], status["bytes_down"]) == (1600, 3200)
    assert (status["rounds_done"], status["job"]["rounds"]) == (2, 10)
    assert [client["last_round"] for client in status["clients"]] == [1, None, None, 1]
    line = refused(fedpbc("fleet", "status", folder, "--json", "--watch"))
    assert line == "--watch is True, but should be left out: --json shows the status once"


def test_without_a_terminal_there_is_one_line_per_round(tmp_path, capsys):
    folder = write_log(tmp_path, [], rounds=3)
    calls = iter(range(6))

    def sleep(_):
        t = next(calls) // 2
        if t < 3:
            (folder / "rounds.jsonl").write_text(
                "".join(json.dumps(round_line(k, [0])) + "\n" for k in range(t + 1))
            )

    with only_launcher("server", folder):
        assert watch(folder, sleep=sleep).is_over
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines[1:]] == [
        f"fedpbc: {k} of 3 rounds done" for k in (1, 2, 3)
    ]


def test_in_a_terminal_the_table_is_updated(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0])], rounds=2)
    console = Console(width=100, height=40, force_terminal=True, record=True)

    def sleep(_):
        write_log(folder, [round_line(0, [0]), round_line(1, [0, 1])], rounds=2)

    assert watch(folder, console=console, sleep=sleep).is_over
    assert "2 of 2 rounds done; 2 of 4 clients answered" in console.export_text()


def test_neither_torch_nor_flower_is_needed():
    code = (
        "import sys\n"
        "import fedpbc.deployment.ops.status, fedpbc.cli.fleet_display, fedpbc.cli.fleet\n"
        "assert not {'torch', 'flwr', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_durations():
    assert [format_duration(s) for s in (0, 99.4, 100, 5999, 6000, 172800)] == [
        "0 s",
        "99 s",
        "2 min",
        "100 min",
        "1.7 h",
        "2.0 d",
    ]


def test_before_the_first_round(tmp_path):
    folder = write_log(tmp_path, [], connected=[2], fleet="wait_for = 3\n")
    (folder / "rounds.jsonl").unlink()
    with only_launcher("server", folder):
        status = FleetLog(folder).status()
    assert summary(status) == "waiting for clients: 1 of 3 connected"
    (folder / "heard.json").unlink()
    assert FleetLog(folder).status().connected == 0
