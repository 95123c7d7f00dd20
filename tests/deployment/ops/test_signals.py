"""SIGTERM, SIGHUP and Ctrl-C: a line, code 128 + n, no process and no socket left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedpbc.deployment.ops.supervisor import Supervisor
from fedpbc.interrupts import deferred, handled
from tests.commandline import ran
from tests.processes import PATIENCE, child, wait_until

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")
pytestmark = pytest.mark.usefixtures("signals_as_in_a_terminal")


def test_the_first_signal_waits_and_the_second_does_not(monkeypatch):
    monkeypatch.setattr("fedpbc.interrupts.REPEAT_SECONDS", 0.0)
    steps = []

    def work():
        with handled(), deferred() as stop:
            signal.raise_signal(signal.SIGTERM)
            steps.append(stop.is_set())
            signal.raise_signal(signal.SIGHUP)
            steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [True]


def test_a_signal_is_raised_at_the_end():
    steps = []

    def work():
        with handled():
            with deferred() as stop:
                signal.raise_signal(signal.SIGHUP)
                steps.append(stop.wait(0))
            steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [True]


def test_no_command_is_waited_for_once_stopped():
    stopped = threading.Event()
    stopped.set()
    with Supervisor(lambda name, line: None, stopped) as supervisor:
        begun = time.monotonic()
        succeeded, _ = supervisor.run([sys.executable, "-c", "input()"], os.environ, PATIENCE)
        wait = supervisor.run(["sleep", str(PATIENCE)], os.environ, PATIENCE)
    assert not succeeded
    assert not wait[0]
    assert time.monotonic() - begun < PATIENCE / 2


def test_what_processes_print_is_cleaned(tmp_path):
    lines = []
    program = (
        "import sys; sys.stdout.buffer.write("
        "b'\\x1b[32mINFO\\x1b[0m \\x1b]0;title\\x07 \\xff\\rfake\\n' + b'x' * 10**5); "
        "sys.stdout.flush(); import time; time.sleep(100)"
    )
    with Supervisor(lambda name, line: lines.append(line)) as supervisor:
        supervisor.start("a", [sys.executable, "-c", program])
        wait_until(lambda: len(lines) > 3)
    assert lines[0] == b"INFO \\x1b]0;title\\x07 \\xff fake\n"
    assert all(line.endswith(b"\n") and len(line) < 2100 for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("role", "number"),
    [("device", signal.SIGTERM), ("server", signal.SIGHUP)],
)
def test_a_fleet_command_ends_in_order(tmp_path, role, number):
    options = ("--clients", 1, "--host", "127.0.0.1", "--port", 18999, "--data", "digits")
    ran("fleet", "init", tmp_path / "f", *options, "--insecure")
    folder = tmp_path / "f" / ("server" if role == "server" else "device-0")
    ready = {"server": "[gateway]", "device": "is ready at"}[role]
    command = [sys.executable, "-m", "fedpbc.cli.app", "fleet", role, folder, "--insecure"]
    with child(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if ready in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, (lines, out, err)
    assert err == f"fedpbc: interrupted; 'fedpbc fleet {role} {folder}' resumes\n"
    assert not list(folder.rglob("trainer"))
    left = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True).stdout
    assert str(folder) not in left
