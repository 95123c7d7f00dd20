"""Progress without a terminal: a line now and then, none of what takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpbc.cli.progress import GridDisplay, RunDisplay
from fedpbc.experiments.sweep import GridProgress
from fedpbc.paper.catalog import ProgressRow


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets; every reading is the same until then."""
    now = [100.0]
    monkeypatch.setattr("fedpbc.cli.progress.time.monotonic", lambda: now[0])
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
