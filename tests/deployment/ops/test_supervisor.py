"""Processes are kept running, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedpbc.deployment.ops import process_sessions
from fedpbc.deployment.ops import supervisor as supervisor_module
from fedpbc.deployment.ops.process_sessions import end_sessions, processes_in
from fedpbc.deployment.ops.supervisor import Supervisor, log_to_files
from fedpbc.errors import FedpbcError
from tests.processes import PATIENCE, child, wait_until

pytestmark = pytest.mark.slow

PYTHON = sys.executable
# Leaves its child behind when it ends, as a killed process does.
PARENT = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); "


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(supervisor_module, "LONGEST_DELAY", 0.2)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def supervisor(lines, quick):
    with Supervisor(lambda name, line: lines.append((name, line))) as supervisor:
        yield supervisor


def test_a_process_that_ends_is_restarted(supervisor, lines):
    supervisor.start("once", [PYTHON, "-c", "print('here'); raise SystemExit(3)"])
    wait_until(lambda: lines.count(("once", b"here\n")) >= 2)
    assert supervisor.service("once").exits >= 1
    assert any(b"once exited with code 3; restart in" in line for _, line in lines)


def test_the_delay_grows_for_a_process_that_keeps_ending(supervisor, monkeypatch):
    monkeypatch.setattr(supervisor_module, "LONGEST_DELAY", 0.4)
    supervisor.start("never", ["false"])
    began = time.monotonic()
    wait_until(lambda: supervisor.service("never").exits >= 4)
    # Delays of 0.1, 0.2 and 0.4 s between the four.
    assert time.monotonic() - began > 0.7


def test_the_children_of_a_killed_process_are_ended(supervisor, lines):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: ("parent", b"up\n") in lines)
    first = supervisor.service("parent").pid
    assert len(processes_in([first])) == 2
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: lines.count(("parent", b"up\n")) == 2)
    assert not processes_in([first])
    assert supervisor.service("parent").pid != first


def test_a_stopped_process_is_not_restarted(supervisor, lines):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: lines)
    session = supervisor.service("parent").pid
    supervisor.stop("parent")
    assert not processes_in([session])
    assert supervisor.service("parent").pid is None
    time.sleep(0.3)
    assert lines == [("parent", b"up\n")]


def test_closing_a_supervisor_ends_all_processes(lines):
    with Supervisor(lambda name, line: lines.append(line)) as supervisor:
        # One ignores SIGTERM, and one is stopped.
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        supervisor.start("still", [PYTHON, "-c", PARENT + "time.sleep(600)"])
        wait_until(lambda: len(lines) == 1)
        still = supervisor.service("still").pid
        os.kill(still, signal.SIGSTOP)
        supervisor.start("deaf", [PYTHON, "-c", deaf + PARENT + "time.sleep(600)"])
        wait_until(lambda: len(lines) == 2)
        sessions = [still, supervisor.service("deaf").pid]
        assert len(processes_in(sessions)) == 4
    assert not processes_in(sessions)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_leaves_nothing_behind(tmp_path, how):
    script = f"""
import time
from fedpbc.deployment.ops.supervisor import Supervisor
lines = []
supervisor = Supervisor(lambda name, line: lines.append(line))
supervisor.start("parent", [{PYTHON!r}, "-c", {PARENT + "time.sleep(600)"!r}])
while not lines:
    time.sleep(0.01)
print(supervisor.service("parent").pid, flush=True)
time.sleep(600)
"""
    with child([PYTHON, "-c", script]) as running:
        session = int(running.stdout.readline())
        assert len(processes_in([session])) == 2
        running.send_signal(how)
        wait_until(lambda: not processes_in([session]))


def test_a_missing_command_is_one_line(supervisor):
    with pytest.raises(FedpbcError, match="no-such-command cannot be started: No such file"):
        supervisor.start("none", ["no-such-command"])


def test_output_goes_log_to_files(tmp_path):
    with Supervisor(log_to_files(tmp_path / "logs")) as supervisor:
        supervisor.start(
            "a", [PYTHON, "-c", "import time; print('1\\n2', flush=True); time.sleep(9)"]
        )
        wait_until(lambda: supervisor.service("a").last_output == ["1", "2"])
    assert (tmp_path / "logs/a.log").read_text() == "1\n2\n"


def test_a_process_that_cannot_be_started_is_retried(supervisor, lines, monkeypatch):
    """For example EAGAIN; the others are supervised meanwhile."""
    fork, left = subprocess.Popen, [3]

    def full(command, **options):
        if command[0] == PYTHON and left[0]:
            left[0] -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork(command, **options)

    supervisor.start("first", [PYTHON, "-c", "print('up', flush=True); raise SystemExit(3)"])
    supervisor.start("other", ["false"])
    monkeypatch.setattr(subprocess, "Popen", full)
    wait_until(lambda: lines.count(("first", b"up\n")) >= 2)
    assert left == [0]
    line = f"first: {PYTHON} cannot be started: Resource temporarily unavailable; retrying"
    assert ("first", line.encode() + b"\n") in lines
    before = supervisor.service("other").exits
    wait_until(lambda: supervisor.service("other").exits > before)


def test_a_command_that_never_started_is_not_retried(supervisor, lines):
    with pytest.raises(FedpbcError, match="cannot be started"):
        supervisor.start("none", ["no-such-command"])
    time.sleep(0.4)
    assert not lines
    supervisor.start("one", ["echo", "here"])
    wait_until(lambda: lines.count(("one", b"here\n")) >= 2)


def test_an_error_with_one_process_does_not_affect_the_others(supervisor, lines, monkeypatch):
    def failing(sessions, timeout=10.0):
        if bad in sessions and "fixed" not in lines:
            raise PermissionError(1, "Operation not permitted")
        return end_sessions(sessions, timeout)

    supervisor.start("bad", [PYTHON, "-c", "import time; time.sleep(600)"])
    bad = supervisor.service("bad").pid
    monkeypatch.setattr(supervisor_module, "end_sessions", failing)
    supervisor.start("other", ["false"])
    os.kill(bad, signal.SIGKILL)
    wait_until(lambda: sum(name == "bad" and b"not permitted" in line for name, line in lines) >= 2)
    before = supervisor.service("other").exits
    wait_until(lambda: supervisor.service("other").exits > before)
    assert supervisor.service("bad").pid is None
    lines.append("fixed")
    wait_until(lambda: supervisor.service("bad").pid is not None)
    assert supervisor.service("bad").exits == 1


def test_output_that_cannot_be_written_is_dropped(quick):
    """On a full disk supervision continues, and no process gets a broken pipe."""
    written = []

    def full(name, line):
        written.append(line)
        raise OSError(28, "No space left on device")

    script = "import sys\nfor k in range(3): print(k, flush=True)\nsys.exit(7)"
    with Supervisor(full) as supervisor:
        supervisor.start("a", [PYTHON, "-c", script])
        wait_until(lambda: supervisor.service("a").exits >= 2)
        supervisor.log("a", b"from outside\n")
        assert supervisor.service("a").last_output[:3] == ["0", "1", "2"]
    assert any(b"a exited with code 7" in line for line in written)


def test_a_process_that_cannot_be_ended_blocks_nothing(supervisor, lines, monkeypatch):
    """Such as one that hangs in the kernel: the lock stays free, and waiting is limited."""
    monkeypatch.setattr(process_sessions, "KILL_SECONDS", 0.3)
    supervisor.start("hung", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: lines)
    first = supervisor.service("hung").pid
    with monkeypatch.context() as deaf:
        real = os.kill
        deaf.setattr(os, "kill", lambda process, number: None)
        real(first, signal.SIGKILL)
        wait_until(lambda: supervisor.service("hung").exits == 1)
        line = f"hung: a process of session {first} cannot be ended\n".encode()
        assert supervisor.service("hung").pid is None
        assert ("hung", line) not in lines
        wait_until(lambda: ("hung", line) in lines)
        wait_until(lambda: supervisor.service("hung").pid is not None)
    assert len(processes_in([first])) == 1
    # The guard still tracks it; see the next test.
    assert end_sessions([first], 1.0)


def test_the_guard_ends_what_could_not_be_ended_before(lines, quick, monkeypatch):
    monkeypatch.setattr(process_sessions, "KILL_SECONDS", 0.3)
    with Supervisor(lambda name, line: lines.append(line)) as supervisor:
        supervisor.start("hung", [PYTHON, "-c", PARENT + "time.sleep(600)"])
        wait_until(lambda: lines)
        first = supervisor.service("hung").pid
        with monkeypatch.context() as deaf:
            real = os.kill
            deaf.setattr(os, "kill", lambda process, number: None)
            real(first, signal.SIGKILL)
            wait_until(lambda: any(b"cannot be ended" in line for line in lines))
        assert processes_in([first])
    assert not processes_in([first])


def test_a_process_of_another_user_is_no_error(monkeypatch):
    monkeypatch.setattr(process_sessions, "KILL_SECONDS", 0.1)

    def forbidden(process, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.kill", forbidden)
    assert not end_sessions([os.getsid(0)], timeout=0.1)


def test_a_command_is_run_once(supervisor):
    script = "import os, sys; print(os.environ['A'], flush=True); "
    script += "print('two', file=sys.stderr); sys.exit({})"
    for code in (0, 3):
        ended = supervisor.run([PYTHON, "-c", script.format(code)], {"A": "one"}, timeout=PATIENCE)
        assert ended == (code == 0, "one\ntwo\n")
    succeeded, output = supervisor.run(["no-such-command"], {}, timeout=PATIENCE)
    assert not succeeded
    assert output == "no-such-command cannot be run: No such file or directory"


def test_a_command_that_hangs_is_ended_with_its_children(supervisor):
    began = time.monotonic()
    # Not Python: its start may take longer than this timeout on a busy machine.
    script = "echo $$; sleep 600 & echo up; wait"
    succeeded, output = supervisor.run(["sh", "-c", script], dict(os.environ), timeout=1.0)
    assert time.monotonic() - began < PATIENCE
    assert not succeeded
    session, up, *late = output.split("\n")
    assert (up, late) == ("up", ["", "timed out after 1 s"])
    assert not processes_in([int(session)])


def test_quick_exits_in_a_row_are_counted(supervisor, monkeypatch):
    supervisor.start("a", ["false"])
    wait_until(lambda: supervisor.service("a").quick_exits >= 3)
    # From now on every run counts as long.
    monkeypatch.setattr(supervisor_module, "STEADY_SECONDS", -1.0)
    before = supervisor.service("a").exits
    wait_until(lambda: supervisor.service("a").exits >= before + 2)
    assert supervisor.service("a").quick_exits == 0
