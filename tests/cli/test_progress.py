"""Progress without a terminal: a line now and then, none of what takes seconds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fedpbc.cli.progress import GridDisplay, RunDisplay
from fedpbc.experiments.sweep import GridProgress
from fedpbc.paper.catalog import ProgressRow
from tests.processes import wait_until


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets; every reading is the same until then."""
    now = [100.0]
    monkeypatch.setattr("fedpbc.progress_lines.time.monotonic", lambda: now[0])
    return now


def test_a_line_for_every_tenth_or_half_minute(clock, capsys):
    with RunDisplay(Path("run"), quiet=False) as display:
        display.on_start(0, 1000, "serial")
        for done in range(1, 1001):
            clock[0] += 0.1 if done < 500 else 1.0
            display.on_round(done, None)
    lines = capsys.readouterr().err.splitlines()
    shares = [line.split(":")[1].strip() for line in lines]
    # Tenths of the work in the fast half, half minutes (3 %) in the slow one.
    assert shares[:4] == ["10 %", "20 %", "30 %", "40 %"]
    assert shares[4:7] == ["50 %", "53 %", "56 %"]
    assert lines[0] == "fedpbc: 10 %: round 100 of 1000, about 90 s left"
    assert "100 %" not in shares


def test_nothing_of_what_takes_seconds_or_is_quiet(clock, capsys):
    for quiet, step in ((False, 0.001), (True, 10.0)):
        with RunDisplay(Path("run"), quiet=quiet) as display:
            display.on_start(0, 100, "serial")
            for done in range(1, 101):
                clock[0] += step
                display.on_round(done, None)
    assert capsys.readouterr().err == ""


def test_many_runs_say_how_many_are_finished(clock, capsys):
    rows = [ProgressRow("a", 10), ProgressRow("b", 10)]
    with GridDisplay(rows, Path("runs"), quiet=False) as display:
        clock[0] += 60
        display.on_progress(GridProgress(0, 10, 0.5))
    expected = "fedpbc: 50 %: 1 of 2 runs finished, about 60 s left\n"
    assert capsys.readouterr().err == expected


def test_a_round_that_takes_long_is_not_silent(clock, capsys):
    with RunDisplay(Path("run"), quiet=False) as display:
        clock[0] += 40
        display.tick()
        display.on_start(0, 10, "serial")
        for _ in range(7):
            clock[0] += 10
            display.tick()
        display.on_round(1, None)
        clock[0] += 30
        display.tick()
    assert capsys.readouterr().err.splitlines() == [
        "fedpbc: 0 %: starting",
        "fedpbc: 0 %: round 0 of 10",
        "fedpbc: 0 %: round 0 of 10",
        "fedpbc: 10 %: round 1 of 10, about 10 min left",
        "fedpbc: 10 %: round 1 of 10, about 15 min left",
    ]


def test_the_clock_ticks_by_itself_until_the_end(monkeypatch, capsys):
    monkeypatch.setattr("fedpbc.cli.progress.TICK_SECONDS", 0.01)
    monkeypatch.setattr("fedpbc.progress_lines.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("fedpbc.progress_lines.LINE_SECONDS", 0.02)
    rows = [ProgressRow("a", 10, done=10), ProgressRow("b", 10)]
    said: list[str] = []

    def said_three_times() -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return len(said) >= 3

    with GridDisplay(rows, Path("runs"), quiet=False):
        wait_until(said_three_times)
    assert set(said) == {"fedpbc: 50 %: 1 of 2 runs finished"}
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"progress"})


def test_with_json_nothing_ticks():
    with RunDisplay(Path("run"), quiet=True):
        assert {thread.name for thread in threading.enumerate()}.isdisjoint({"progress"})
