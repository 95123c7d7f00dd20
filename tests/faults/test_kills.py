"""SIGKILL at random moments, for every engine and every command that writes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.commandline import content
from tests.faults.scenarios import SCENARIOS, Scenario, temporary_files
from tests.killed import MARK, Server, own_shared_memory
from tests.processes import wait_until

KILLS = {
    "run": 25,
    "run with reports on disk": 20,
    "run --overwrite": 20,
    "resume": 20,
    "resume a comparison": 5,
    "resume a search": 5,
    "resume advice": 2,
    "compare": 15,
    "compare --overwrite": 10,
    "compare, widened": 5,
    "tune": 10,
    "tune --overwrite": 5,
    "advise": 4,
    "links --out": 3,
    "links --out, a picture": 2,
    "links --out, as JSON": 2,
    "report": 3,
    "report --out": 2,
    "theory --out": 4,
    "paper fig2": 2,
    "paper fig3": 5,
    "paper fig5": 2,
    "paper fig6": 3,
    "paper table1": 4,
    "paper table1 --overwrite": 4,
    "paper table2": 3,
    "paper ablation": 3,
    "paper tune": 5,
    "fleet init": 8,
    "fleet add": 4,
    "fleet add --replace": 3,
    "fleet add, during a job": 3,
    "fleet renew": 4,
    "fleet accept": 3,
    "fleet leave": 3,
    "fleet demo": 4,
    "fleet demo --overwrite": 4,
    "fleet job": 8,
    "flower job": 6,
    "run pool": 18,
    "run ray": 4,
    "compare --jobs 2": 3,
}
"""More than two hundred."""
SEED = os.environ.get("SEED", "0")
STEP = int(os.environ.get("STEP", "1"))


def processes_of(mark: str) -> list[int]:
    """The processes that a command started and that are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # It has ended, or is not ours.
    return found


def check_end(server: Server, scenario: Scenario, before: Path, whole: Path, folder: Path) -> None:
    """Take up a command that was killed, and compare it with one that was not."""
    wait_until(lambda: not processes_of(server.mark))
    assert server.shared_memory() == []
    assert server.left_behind() == []
    if scenario.replaces and content(folder) != content(before):
        again = server.run("resume", folder / "run")
        assert (again.code, again.err) == (0, ""), again
        old = scenario.is_same(before, folder)
        assert old or scenario.is_same(whole, folder)
    again = scenario.recover(server, folder)
    assert (again.code, again.err) == (0, ""), again
    scenario.assert_same(whole, folder)
    assert not temporary_files(folder)


def kill_at_random(server, undisturbed, tmp_path, name: str, kills: int, seed: str) -> None:
    scenario, before, whole = undisturbed(name)
    dice, killed, attempts, complaints = random.Random(f"{seed} {name}"), 0, 0, []
    began = time.monotonic()
    ended = server.run(*scenario.arguments(scenario.copied(before, tmp_path / "timed")))
    assert ended.code == 0
    takes = time.monotonic() - began
    while killed < kills and attempts < 10 * kills:
        folder = scenario.copied(before, tmp_path / f"kill{attempts}")
        moment = dice.random() * takes
        attempts += 1
        ended = server.run(*scenario.arguments(folder), kill={"after": moment})
        if ended.code == 0:
            # The machine is less busy by now: it ended before.
            takes *= 0.9
            continue
        killed += 1
        try:
            assert ended.code == -signal.SIGKILL, ended
            check_end(server, scenario, before, whole, folder)
        except AssertionError as error:
            complaints.append(f"{folder.name}, after {moment:.3f} s: {str(error)[:500]}")
    print(f"{name}: {killed} kills within {takes:.2f} s")
    assert complaints == []
    assert killed == kills


SOME = {
    "run with reports on disk": 1,
    "run --overwrite": 2,
    "fleet init": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_command_killed_at_some_moment_comes_to_the_same(faulty, undisturbed, tmp_path, name):
    kill_at_random(faulty, undisturbed, tmp_path, name, SOME[name], "short")


@pytest.mark.slow
def test_shared_memory_that_is_left_behind_is_seen(faulty):
    if not own_shared_memory():
        pytest.skip("unshare is not allowed here: shared memory that kills leave goes unnoticed")
    for left in (["left"], []):
        assert faulty.run("tests.faults.steps:change_shared_memory").code == 0
        assert faulty.shared_memory() == left


@pytest.mark.kills
@pytest.mark.parametrize("name", KILLS)
def test_commands_killed_at_random_moments_come_to_the_same(faulty, undisturbed, tmp_path, name):
    kill_at_random(faulty, undisturbed, tmp_path, name, KILLS[name], SEED)


@pytest.mark.faults
@pytest.mark.parametrize("name", SCENARIOS)
def test_commands_killed_at_every_call_come_to_the_same(faulty, undisturbed, tmp_path, name):
    """At every call that changes the folder."""
    scenario, before, whole = undisturbed(name)
    counted = scenario.copied(before, tmp_path / "counted")
    assert faulty.run(*scenario.arguments(counted), fault=f"kill 0 {counted}").code == 0
    calls, complaints = faulty.calls, []
    chosen = range(1, calls + 1, STEP)
    for n in chosen:
        folder = scenario.copied(before, tmp_path / f"n{n}")
        try:
            ended = faulty.run(*scenario.arguments(folder), fault=f"kill {n} {folder}")
            assert ended.code == -signal.SIGKILL, ended
            check_end(faulty, scenario, before, whole, folder)
        except AssertionError as error:
            complaints.append(f"call {n} of {calls}: {str(error)[:500]}")
    print(f"{name}: killed at {len(chosen)} of {calls} calls")
    assert complaints == []
