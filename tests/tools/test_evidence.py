"""The long runs: stopped or killed anywhere they go on to the same bits, and are kept as files."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedpbc import Config, start_run
from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_result import RunResult
from tests.processes import PATIENCE, child, wait_until

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))
evidence = importlib.import_module("evidence")

LONG = {
    "rounds": 300,
    "seed": 0,
    "clients": 8,
    "evaluate_every": 100,
    "algorithm": {"name": "fedpbc"},
    "data": {"name": "digits"},
    "links": {"name": "bernoulli"},
    "train": {"learning_rate": 0.05, "global_learning_rate": 1.0},
}
DIVERGING = LONG | {"algorithm": {"name": "fedavg"}, "train": {"learning_rate": 1e9}}
RUN = evidence.Run("table1", "long", LONG, "fedpbc", ["table2"])
OTHERS = [
    evidence.Run("study", "waiting", LONG, "fedpbc", ready=False),
    evidence.Run("grid", "diverging", DIVERGING, "fedavg"),
]
SCRIPT = f"""
import sys
sys.path.append({str(TOOLS)!r})
import evidence

evidence.LOST_SECONDS = 0.02
sys.exit(evidence.main(lambda kept: [evidence.{RUN!r}]))
"""


@pytest.fixture
def command(tmp_path):
    """The command with a plan of one run of some seconds, and many checkpoints."""
    script = tmp_path / "small.py"
    script.write_text(SCRIPT)
    places = ["--keep-in", tmp_path / "repository", "--work", tmp_path / "work", "--jobs", "1"]
    return [sys.executable, script, "run", *places]


def go_on(tmp_path, plan, **options):
    """Run what is left of a plan, here."""
    places = tmp_path / "repository", tmp_path / "work"
    return evidence.Runner(lambda kept: plan, *places, jobs=1, **options).run()


def checkpoints(tmp_path):
    """Those of the long run, after round 0."""
    found = tmp_path.glob("work/table1/long-*/checkpoint-*.safetensors")
    return [path for path in found if not path.name.startswith("checkpoint-0000000")]


def uninterrupted(tmp_path):
    """The same run at one go, as a comparison knows it."""
    path = tmp_path / "alone"
    summary = start_run(Config.from_dict(LONG | {"engine": "serial"}), path)
    run = RunResult("fedpbc", 0, metrics=RunDirectory(path).metrics(), label="fedpbc")
    return run.with_summary(summary)


def child_of(pid):
    """The process of the only run under way."""
    [run] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(run)


@pytest.mark.slow
def test_stopped_runs_go_on_and_are_kept(command, tmp_path, capsys):
    keep = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(keep)], check=True)
    for key, value in (("user.name", "A"), ("user.email", "a@example.org")):
        subprocess.run(["git", "-C", str(keep), "config", key, value], check=True)
    with child(command) as process:
        wait_until(lambda: checkpoints(tmp_path))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    assert "stopped table1/long" in out
    assert evidence.kept_runs(keep) == {}

    assert go_on(tmp_path, [*OTHERS, RUN], commit=True) == 0
    assert "resume table1/long" in capsys.readouterr().out
    kept = evidence.kept_runs(keep)
    assert set(kept) == {"table1/long", "grid/diverging"}
    assert kept["grid/diverging"]["failure"].startswith("diverged in round ")
    assert not list(tmp_path.glob("work/*/*"))
    log = ["git", "-C", str(keep), "log", "--format=%s", "--name-only"]
    committed = subprocess.run(log, capture_output=True, text=True, check=True).stdout
    assert "docs/evidence/table1/long.json" in committed
    assert "docs/evidence/grid/diverging.json" in committed

    content = kept["table1/long"]
    assert content["settings"] == LONG
    assert content["serves"] == ["table2"]
    assert content["failure"] is None
    assert content["config"]["train"]["local_steps"] == 5
    assert content["seconds"] > 0
    [made_on] = content["made_on"]
    assert set(made_on) == {"commit", "processor"}
    assert {"torch", "python", "fedpbc"} <= set(content["summary"]["versions"])
    assert set(content["evaluations"]["views"]) == {
        *("server", "averaged", "mean", "reported", "corrected")
    }
    # A table made of the file is that of an uninterrupted run.
    rows = Comparison([evidence.as_result(content)]).rows()
    for row, other in zip(rows, Comparison([uninterrupted(tmp_path)]).rows(), strict=True):
        assert row.test.mean == pytest.approx(other.test.mean, abs=1e-5)
        assert row.train.mean == pytest.approx(other.train.mean, abs=1e-5)
        assert row.loss.mean == pytest.approx(other.loss.mean, rel=1e-3)
        assert row.worst_class.mean == pytest.approx(other.worst_class.mean, abs=1e-5)
        assert (row.view, row.local_steps, row.bytes_up, row.models_on_server) == (
            *(other.view, other.local_steps, other.bytes_up, other.models_on_server),
        )

    # Nothing is left to be run.
    assert go_on(tmp_path, [*OTHERS, RUN]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_killed_runner_does_not_run_anything_twice(command, tmp_path, capsys):
    with child(command) as process:
        wait_until(lambda: checkpoints(tmp_path))
        run = child_of(process.pid)
        os.kill(run, signal.SIGSTOP)
        process.kill()
        process.wait()
    try:
        with pytest.raises(SystemExit, match="is in use"):
            go_on(tmp_path, [RUN])
    finally:
        with suppress(ProcessLookupError):
            os.kill(run, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{run}").exists())
    assert go_on(tmp_path, [RUN]) == 0
    assert "resume table1/long" in capsys.readouterr().out
    content = evidence.kept_runs(tmp_path / "repository")["table1/long"]
    alone = uninterrupted(tmp_path)
    views = content["evaluations"]["views"]
    assert views["mean"]["test_loss"] == [
        evidence.rounded("test_loss", line["views"]["mean"]["test_loss"]) for line in alone.metrics
    ]


def test_a_clock_that_has_passed_means_tomorrow():
    from datetime import datetime, timedelta

    now = datetime.now()
    at = f"{now - timedelta(minutes=2):%H:%M}"
    wait = evidence.end_of(at, None) - now.timestamp()
    assert 23 * 3600 < wait < 24 * 3600
    assert evidence.end_of(at, 1.5) == pytest.approx(now.timestamp() + 5400, abs=60)


def test_kept_values_are_exact_enough():
    for correct in range(26_033):
        accuracy = correct / 26_032
        assert round(26_032 * evidence.rounded("test_accuracy", accuracy)) == correct
    assert evidence.rounded("test_loss", 2.218573174) == 2.219
