"""Disks that are full, read-only or broken, from any call on, for every command that writes."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.commandline import content
from tests.faults.scenarios import SCENARIOS, SLOW_SCENARIOS, Scenario, temporary_files
from tests.killed import Server

REASONS = {
    "full": "No space left on device",
    "once": "No space left on device",
    "sync": "Input/output error",
    "error": "Input/output error",
    "read-only": "Read-only file system",
}
LOGGED_OF_DEVICES = ("rejected node ", "cannot send to node ")
STEP = int(os.environ.get("STEP", "1"))
"""Every so many calls one is disturbed."""


def named_path(folder: Path, line: str) -> Path | None:
    """The path below a folder, or that of the folder, that a line has in it."""
    found = re.search(re.escape(str(folder)) + r"(/[\w.,=-]+)*", line)
    return None if found is None else Path(found.group().rstrip(".,"))


def disturb(
    server: Server, scenario: Scenario, kind: str, n: int, before: Path, whole: Path, folder: Path
) -> int:
    """Let the n-th call fail, check what is left, and go on; returns the command's exit code."""
    ended = server.run(*scenario.arguments(folder), fault=f"{kind} {n} {folder}")
    if ended.code == 0:
        # Only a tracker's file was lost, say: there is a note, and resuming writes it again.
        assert REASONS[kind] in ended.err or scenario.devices, ended
        again = scenario.recover(server, folder)
        assert (again.code, again.err) == (0, ""), again
        scenario.assert_same(whole, folder)
        return 0
    assert ended.code == 2, ended
    # A tracker that is switched off is a note.
    [*notes, line] = ended.err.splitlines()
    logged = LOGGED_OF_DEVICES if scenario.devices else "fedpbc: note: "
    assert all(note.startswith(logged) for note in notes), notes
    assert line.startswith("fedpbc: "), line
    named = named_path(folder, line)
    # A file, or the folder where one that is created or synced is what failed.
    assert named is not None, line
    assert kind not in ("full", "once") or not named.is_dir(), line
    assert REASONS[kind] in line, line
    if kind != "read-only" and not scenario.replaces:
        assert not temporary_files(folder)
    if scenario.replaces and content(folder) != content(before):
        # Whatever is there now can be continued, and is one of the two.
        again = server.run("resume", folder / "run")
        assert (again.code, again.err) == (0, ""), again
        old = scenario.is_same(before, folder)
        assert old or scenario.is_same(whole, folder)
    again = scenario.recover(server, folder)
    assert (again.code, again.err) == (0, ""), again
    scenario.assert_same(whole, folder)
    assert not temporary_files(folder)
    return 2


def calls_of(server: Server, scenario: Scenario, kind: str, before: Path, folder: Path) -> int:
    """How many calls of an undisturbed command can fail."""
    scenario.copied(before, folder)
    ended = server.run(*scenario.arguments(folder), fault=f"{kind} 0 {folder}")
    assert (ended.code, ended.err) == (0, "")
    return server.calls


def sweep(server, undisturbed, tmp_path, name, kind, chosen) -> None:
    scenario, before, whole = undisturbed(name)
    calls = calls_of(server, scenario, kind, before, tmp_path / "counted")
    complaints, codes = [], []
    for n in chosen(calls):
        folder = scenario.copied(before, tmp_path / f"n{n}")
        try:
            codes.append(disturb(server, scenario, kind, n, before, whole, folder))
        except AssertionError as error:
            complaints.append(f"call {n} of {calls}: {str(error)[:500]}")
    print(f"{name}, {kind}: {len(codes)} of {calls} calls, {codes.count(2)} ended the command")
    assert complaints == []


SOME = [
    ("run", "full"),
    ("run --overwrite", "read-only"),
    ("resume", "sync"),
    ("report", "full"),
    ("fleet add --replace", "sync"),
]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), SOME)
def test_a_call_that_fails_is_one_line_and_nothing_is_lost(
    faulty, undisturbed, tmp_path, name, kind
):
    dice = random.Random(f"{name} {kind}")
    sweep(faulty, undisturbed, tmp_path, name, kind, lambda calls: [dice.randint(1, calls)])


@pytest.mark.faults
@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_that_fails(faulty, undisturbed, tmp_path, name, kind):
    sweep(faulty, undisturbed, tmp_path, name, kind, lambda calls: range(1, calls + 1, STEP))


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["full", "sync"])
@pytest.mark.parametrize("name", SLOW_SCENARIOS)
def test_some_calls_that_fail_of_commands_with_processes(faulty, undisturbed, tmp_path, name, kind):
    sweep(faulty, undisturbed, tmp_path, name, kind, lambda calls: range(1, calls + 1, 7 * STEP))
