"""Processes that are kept running, and that none of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedpbc.errors import FedpbcError
from fedpbc.flower import supervise
from fedpbc.flower.sessions import members
from fedpbc.flower.supervise import Supervisor, to_files

PYTHON = sys.executable
# Ends with its child left alone, as a killed process does.
PARENT = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); "


def wait_for(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervise, "FIRST_DELAY", 0.05)


@pytest.fixture
def said():
    return []


@pytest.fixture
def supervisor(said, quick):
    with Supervisor(lambda name, line: said.append((name, line))) as supervisor:
        yield supervisor


def test_what_ends_is_started_again(supervisor, said):
    supervisor.start("once", [PYTHON, "-c", "print('here'); raise SystemExit(3)"])
    wait_for(lambda: said.count(("once", b"here\n")) >= 2)
    assert supervisor.deaths("once") >= 1
    assert any(b"once has ended (3); again in" in line for _, line in said)


def test_what_keeps_ending_is_given_more_and_more_time(supervisor, monkeypatch):
    monkeypatch.setattr(supervise, "LONGEST_DELAY", 0.4)
    supervisor.start("never", ["false"])
    began = time.monotonic()
    wait_for(lambda: supervisor.deaths("never") >= 4)
    # 0.1, 0.2 and 0.4 between the four.
    assert time.monotonic() - began > 0.7


def test_a_killed_process_takes_along_what_it_started(supervisor, said):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_for(lambda: ("parent", b"up\n") in said)
    first = supervisor.process("parent")
    assert len(members([first])) == 2
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: said.count(("parent", b"up\n")) == 2)
    assert not members([first])
    assert supervisor.process("parent") != first


def test_one_can_be_stopped_for_good(supervisor, said):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_for(lambda: said)
    session = supervisor.process("parent")
    supervisor.stop("parent")
    assert not members([session])
    assert supervisor.process("parent") is None
    time.sleep(0.3)
    assert said == [("parent", b"up\n")]


def test_the_end_of_a_supervisor_is_the_end_of_all(said):
    with Supervisor(lambda name, line: said.append(line)) as supervisor:
        # One that does not mind being asked to end, and one that stands still.
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        supervisor.start("still", [PYTHON, "-c", PARENT + "time.sleep(600)"])
        wait_for(lambda: len(said) == 1)
        still = supervisor.process("still")
        os.kill(still, signal.SIGSTOP)
        supervisor.start("deaf", [PYTHON, "-c", deaf + PARENT + "time.sleep(600)"])
        wait_for(lambda: len(said) == 2)
        sessions = [still, supervisor.process("deaf")]
        assert len(members(sessions)) == 4
    assert not members(sessions)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_leaves_nothing_behind(tmp_path, how):
    script = f"""
import time
from fedpbc.flower.supervise import Supervisor
said = []
supervisor = Supervisor(lambda name, line: said.append(line))
supervisor.start("parent", [{PYTHON!r}, "-c", {PARENT + "time.sleep(600)"!r}])
while not said:
    time.sleep(0.01)
print(supervisor.process("parent"), flush=True)
time.sleep(600)
"""
    running = subprocess.Popen([PYTHON, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        session = int(running.stdout.readline())
        assert len(members([session])) == 2
        running.send_signal(how)
        wait_for(lambda: not members([session]))
    finally:
        running.kill()
        running.communicate()


def test_a_command_that_is_not_there_is_one_line(supervisor):
    with pytest.raises(FedpbcError, match="no-such-command cannot be started: No such file"):
        supervisor.start("none", ["no-such-command"])


def test_output_goes_to_files(tmp_path):
    with Supervisor(to_files(tmp_path / "logs")) as supervisor:
        supervisor.start(
            "a", [PYTHON, "-c", "import time; print('1\\n2', flush=True); time.sleep(9)"]
        )
        wait_for(lambda: supervisor.last_words("a") == ["1", "2"])
    assert (tmp_path / "logs/a.log").read_text() == "1\n2\n"
