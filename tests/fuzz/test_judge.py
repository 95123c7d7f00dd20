"""The fuzzer finds what it is there to find."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.case import Outcome, Step
from tests.fuzz.commands import Line, step_of
from tests.fuzz.damages import differs
from tests.fuzz.judge import judge
from tests.fuzz.place import Place
from tests.fuzz.worker import Worker

WELL = Outcome(0, "written: out\n", "", 0.1)
REFUSED = Outcome(2, "", "fedpbc: rounds is 0, but should be at least 1\n", 0.1)


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "root", tmp_path / "templates")
    place.prepare()
    return place


def problems(place, outcome, change=lambda: None, **step):
    before = place.snapshot()
    change()
    return list(judge(Step(("run",), **{"writes": ("out",), **step}), outcome, place, before))


@pytest.mark.parametrize("outcome", [WELL, REFUSED])
def test_nothing_is_wrong(place, outcome):
    assert problems(place, outcome) == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome(1, "", "", 0.1), "exit code 1"),
        (Outcome(-11, "", "", 0.1), "exit code -11"),
        (Outcome(0, "", "Traceback (most recent call last)\n", 0.1), "traceback"),
        (Outcome(2, "", "", 0.1), "lines on standard error"),
        (Outcome(2, "", "fedpbc: one line\nanother\n", 0.1), "2 lines on standard error"),
        (Outcome(2, "", "error: no such thing\n", 0.1), "does not begin"),
        (Outcome(0, "", "RuntimeWarning: overflow\n", 0.1), "unexpected line"),
        (Outcome(0, "a\x1b[31m\n", "", 0.1), "control characters in output"),
        (Outcome(2, "", "fedpbc: a line with \u202e\n", 0.1), "control characters in standard"),
        (Outcome(0, "\udcff\n", "", 0.1), "control characters in output"),
        (Outcome(2, "", f"fedpbc: {'a' * 2000}\n", 0.1), "a line of 2008 characters"),
        (Outcome(-9, "", "", 60.0, hung="it did not end"), "hang"),
        (Outcome(0, "", "", 0.1, outside=("open '/etc/x'",)), "far outside"),
        (Outcome(0, "", "", 0.1, left="a process outlived the command"), "outlived"),
    ],
)
def test_what_a_step_says_and_returns(place, outcome, problem):
    assert any(problem in found for found in problems(place, outcome))


@pytest.mark.parametrize(
    ("name", "outcome", "allowed"),
    [
        ("work/out/config.toml", WELL, True),
        ("work/out/config.toml", REFUSED, False),
        ("work/other.txt", WELL, False),
        ("work/mine.txt", WELL, False),
        ("home/notes.txt", WELL, False),
        ("tmp/left", WELL, False),
    ],
)
def test_files_that_change(place, name, outcome, allowed):
    def change():
        path = place.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("changed")

    assert (problems(place, outcome, change) == []) is allowed


def test_the_name_of_a_user_who_does_not_exist_is_that_of_a_folder(place):
    """A shell leaves it as it is, and no --out replaces a ~."""
    writes = ("~nosuchuser/x",)
    assert problems(place, WELL, (place.work / "~nosuchuser").mkdir, writes=writes) == []


def test_a_fleet_may_be_made_in_a_folder_of_any_name():
    line = Line(("fleet", "init"), ["x\u202e.csv"], [("--clients", "2")], writes=["fleet"])
    assert "x\u202e.csv" in step_of(line).writes


def test_a_file_that_is_removed(place):
    [problem] = problems(place, WELL, (place.work / "mine" / "notes.txt").unlink)
    assert "removed: work/mine/notes.txt" in problem


def test_what_was_expected(place):
    assert problems(place, REFUSED, expect="success") != []
    assert problems(place, WELL, expect="refusal") != []


def test_results_that_are_missing_or_no_regular_files_differ(tmp_path):
    assert "no file" in differs(tmp_path, tmp_path)
    os.mkfifo(tmp_path / "final.safetensors")
    assert "no file" in differs(tmp_path, tmp_path)


@pytest.mark.slow
def test_a_step_is_watched_and_ended(tmp_path, place):
    """In a process without threads, as in a worker."""
    import subprocess
    import sys

    code = f"""
from pathlib import Path
from tests.fuzz.case import Step
from tests.fuzz.place import Place
from tests.fuzz.process import run_step
place = Place(Path({str(place.root)!r}), Path({str(tmp_path)!r}))
for text in (
    "import time; time.sleep(60)",
    "open({str(tmp_path / "outside")!r}, 'w')",
    "import os; os.fork() or __import__('time').sleep(60)",
    "bytearray(1 << 40)",
    "1 / 0",
):
    o = run_step(Step(code=text), place, 2.0)
    print(o.code, bool(o.hung), len(o.outside), bool(o.left), "ZeroDivisionError" in o.err, sep=",")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout.split() == [
        "-9,True,0,False,False",
        "0,False,1,False,False",
        "0,False,0,True,False",
        "1,False,0,False,False",
        "1,False,0,False,True",
    ]


@pytest.mark.long
def test_a_worker_reports_its_own_failures():
    worker = Worker(patience=200)
    try:
        verdict = worker.run("nope", 0, 0)
    finally:
        worker.close()
    assert verdict.problems == ["the fuzzer failed"]
    assert "KeyError" in verdict.output
