"""Processes that are kept running, and that none of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedpbc.deployment.ops import sessions
from fedpbc.deployment.ops import supervisor as supervise
from fedpbc.deployment.ops.sessions import end_sessions, members
from fedpbc.deployment.ops.supervisor import Supervisor, to_files
from fedpbc.errors import FedpbcError
from tests.processes import PATIENCE, child, wait_until

pytestmark = pytest.mark.slow

PYTHON = sys.executable
# Ends with its child left alone, as a killed process does.
PARENT = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); "


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervise, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(supervise, "LONGEST_DELAY", 0.2)


@pytest.fixture
def said():
    return []


@pytest.fixture
def supervisor(said, quick):
    with Supervisor(lambda name, line: said.append((name, line))) as supervisor:
        yield supervisor


def test_what_ends_is_started_again(supervisor, said):
    supervisor.start("once", [PYTHON, "-c", "print('here'); raise SystemExit(3)"])
    wait_until(lambda: said.count(("once", b"here\n")) >= 2)
    assert supervisor.deaths("once") >= 1
    assert any(b"once has ended (3); again in" in line for _, line in said)


def test_what_keeps_ending_is_given_more_and_more_time(supervisor, monkeypatch):
    monkeypatch.setattr(supervise, "LONGEST_DELAY", 0.4)
    supervisor.start("never", ["false"])
    began = time.monotonic()
    wait_until(lambda: supervisor.deaths("never") >= 4)
    # 0.1, 0.2 and 0.4 between the four.
    assert time.monotonic() - began > 0.7


def test_a_killed_process_takes_along_what_it_started(supervisor, said):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: ("parent", b"up\n") in said)
    first = supervisor.process("parent")
    assert len(members([first])) == 2
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: said.count(("parent", b"up\n")) == 2)
    assert not members([first])
    assert supervisor.process("parent") != first


def test_one_can_be_stopped_for_good(supervisor, said):
    supervisor.start("parent", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: said)
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
        wait_until(lambda: len(said) == 1)
        still = supervisor.process("still")
        os.kill(still, signal.SIGSTOP)
        supervisor.start("deaf", [PYTHON, "-c", deaf + PARENT + "time.sleep(600)"])
        wait_until(lambda: len(said) == 2)
        sessions = [still, supervisor.process("deaf")]
        assert len(members(sessions)) == 4
    assert not members(sessions)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_leaves_nothing_behind(tmp_path, how):
    script = f"""
import time
from fedpbc.deployment.ops.supervisor import Supervisor
said = []
supervisor = Supervisor(lambda name, line: said.append(line))
supervisor.start("parent", [{PYTHON!r}, "-c", {PARENT + "time.sleep(600)"!r}])
while not said:
    time.sleep(0.01)
print(supervisor.process("parent"), flush=True)
time.sleep(600)
"""
    with child([PYTHON, "-c", script]) as running:
        session = int(running.stdout.readline())
        assert len(members([session])) == 2
        running.send_signal(how)
        wait_until(lambda: not members([session]))


def test_a_command_that_is_not_there_is_one_line(supervisor):
    with pytest.raises(FedpbcError, match="no-such-command cannot be started: No such file"):
        supervisor.start("none", ["no-such-command"])


def test_output_goes_to_files(tmp_path):
    with Supervisor(to_files(tmp_path / "logs")) as supervisor:
        supervisor.start(
            "a", [PYTHON, "-c", "import time; print('1\\n2', flush=True); time.sleep(9)"]
        )
        wait_until(lambda: supervisor.last_words("a") == ["1", "2"])
    assert (tmp_path / "logs/a.log").read_text() == "1\n2\n"


def test_what_cannot_be_started_for_a_while_is_started_later(supervisor, said, monkeypatch):
    """EAGAIN, say: the others are looked after meanwhile."""
    fork, left = subprocess.Popen, [3]

    def full(command, **options):
        if command[0] == PYTHON and left[0]:
            left[0] -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork(command, **options)

    supervisor.start("first", [PYTHON, "-c", "print('up', flush=True); raise SystemExit(3)"])
    supervisor.start("other", ["false"])
    monkeypatch.setattr(subprocess, "Popen", full)
    wait_until(lambda: said.count(("first", b"up\n")) >= 2)
    assert left == [0]
    line = f"first: {PYTHON} cannot be started: Resource temporarily unavailable; again in a while"
    assert ("first", line.encode() + b"\n") in said
    before = supervisor.deaths("other")
    wait_until(lambda: supervisor.deaths("other") > before)


def test_a_command_that_never_started_is_not_tried_again(supervisor, said):
    with pytest.raises(FedpbcError, match="cannot be started"):
        supervisor.start("none", ["no-such-command"])
    time.sleep(0.4)
    assert not said
    supervisor.start("one", ["echo", "here"])
    wait_until(lambda: said.count(("one", b"here\n")) >= 2)


def test_whatever_goes_wrong_with_one_the_others_are_looked_after(supervisor, said, monkeypatch):
    def ill(sessions, patience=10.0):
        if bad in sessions and "mended" not in said:
            raise PermissionError(1, "Operation not permitted")
        return end_sessions(sessions, patience)

    supervisor.start("bad", [PYTHON, "-c", "import time; time.sleep(600)"])
    bad = supervisor.process("bad")
    monkeypatch.setattr(supervise, "end_sessions", ill)
    supervisor.start("other", ["false"])
    os.kill(bad, signal.SIGKILL)
    wait_until(lambda: sum(name == "bad" and b"not permitted" in line for name, line in said) >= 2)
    before = supervisor.deaths("other")
    wait_until(lambda: supervisor.deaths("other") > before)
    assert supervisor.process("bad") is None
    said.append("mended")
    wait_until(lambda: supervisor.process("bad") is not None)
    assert supervisor.deaths("bad") == 1


def test_words_that_cannot_be_passed_on_break_nothing(quick):
    """A full disk: neither does supervision end, nor does a process get a broken pipe."""
    told = []

    def full(name, line):
        told.append(line)
        raise OSError(28, "No space left on device")

    script = "import sys\nfor k in range(3): print(k, flush=True)\nsys.exit(7)"
    with Supervisor(full) as supervisor:
        supervisor.start("a", [PYTHON, "-c", script])
        wait_until(lambda: supervisor.deaths("a") >= 2)
        supervisor.say("a", b"from outside\n")
        assert supervisor.last_words("a")[:3] == ["0", "1", "2"]
    assert any(b"a has ended (7)" in line for line in told)


def test_one_that_cannot_be_ended_keeps_nobody_waiting(supervisor, said, monkeypatch):
    """As a process that hangs in the kernel; the lock is free meanwhile, and there is an end."""
    monkeypatch.setattr(sessions, "KILL_SECONDS", 0.3)
    supervisor.start("hung", [PYTHON, "-c", PARENT + "time.sleep(600)"])
    wait_until(lambda: said)
    first = supervisor.process("hung")
    with monkeypatch.context() as deaf:
        real = os.kill
        deaf.setattr(os, "kill", lambda process, number: None)
        real(first, signal.SIGKILL)
        wait_until(lambda: supervisor.deaths("hung") == 1)
        line = f"hung: a process of session {first} cannot be ended\n".encode()
        assert supervisor.process("hung") is None
        assert ("hung", line) not in said
        wait_until(lambda: ("hung", line) in said)
        wait_until(lambda: supervisor.process("hung") is not None)
    assert len(members([first])) == 1
    # The guard still knows of it; see the next test.
    assert end_sessions([first], 1.0)


def test_what_could_not_be_ended_is_ended_by_the_guard(said, quick, monkeypatch):
    monkeypatch.setattr(sessions, "KILL_SECONDS", 0.3)
    with Supervisor(lambda name, line: said.append(line)) as supervisor:
        supervisor.start("hung", [PYTHON, "-c", PARENT + "time.sleep(600)"])
        wait_until(lambda: said)
        first = supervisor.process("hung")
        with monkeypatch.context() as deaf:
            real = os.kill
            deaf.setattr(os, "kill", lambda process, number: None)
            real(first, signal.SIGKILL)
            wait_until(lambda: any(b"cannot be ended" in line for line in said))
        assert members([first])
    assert not members([first])


def test_a_process_that_is_not_ours_is_no_error(monkeypatch):
    monkeypatch.setattr(sessions, "KILL_SECONDS", 0.1)

    def forbidden(process, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    assert not end_sessions([os.getsid(0)], patience=0.1)


def test_a_command_is_run_once(supervisor):
    script = "import os, sys; print(os.environ['A'], flush=True); "
    script += "print('two', file=sys.stderr); sys.exit({})"
    for code in (0, 3):
        ended = supervisor.run([PYTHON, "-c", script.format(code)], {"A": "one"}, patience=PATIENCE)
        assert ended == (code == 0, "one\ntwo\n")
    went_well, said = supervisor.run(["no-such-command"], {}, patience=PATIENCE)
    assert not went_well
    assert said == "no-such-command cannot be run: No such file or directory"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(supervisor):
    began = time.monotonic()
    # Not Python: its start may take a busy machine longer than this command is given.
    script = "echo $$; sleep 600 & echo up; wait"
    went_well, said = supervisor.run(["sh", "-c", script], dict(os.environ), patience=1.0)
    assert time.monotonic() - began < PATIENCE
    assert not went_well
    session, up, *late = said.split("\n")
    assert (up, late) == ("up", ["", "it was ended after 1 s"])
    assert not members([int(session)])


def test_deaths_in_a_row_are_counted_apart(supervisor, monkeypatch):
    supervisor.start("a", ["false"])
    wait_until(lambda: supervisor.quick_deaths("a") >= 3)
    # From now on every life is a long one.
    monkeypatch.setattr(supervise, "STEADY_SECONDS", -1.0)
    before = supervisor.deaths("a")
    wait_until(lambda: supervisor.deaths("a") >= before + 2)
    assert supervisor.quick_deaths("a") == 0
