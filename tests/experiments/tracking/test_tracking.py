"""What every tracker can rely on, and that none can break a run."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from torch import nn

from fedpbc import Config, DivergedError, Supervised, compare, resume_run, simulate, start_run
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import GridCell, run_grid
from fedpbc.experiments.tracking import choose
from fedpbc.experiments.tracking.tracker import values_of
from tests.commandline import (
    DIGITS,
    assert_same_run,
    content,
    fedpbc,
    final,
    metrics,
    ran,
    timeless,
)
from tests.small_runs import compared, quadratic

GIVEN = {"data": "digits", "clients": 8, "rounds": 10, "evaluate_every": 2, "track": ["wandb"]}


class Recorder:
    """A tracker that keeps what it is told; it may be told to fail."""

    def __init__(self):
        self.begun, self.lines, self.ended, self.fails = [], [], [], ""

    def check(self):
        if self.fails == "check":
            raise ConnectionError("no\nserver")

    def make(self):
        return self

    def _step(self, name):
        if self.fails == name:
            raise OSError("the disk\nis full")

    def begin(self, run, kept):
        self._step("begin")
        self.begun.append((run, dict(kept)))
        self.lines.append([])
        return {"id": kept.get("id", str(len(self.begun)))}

    def log(self, round, values, at):
        self._step("log")
        self.lines[-1].append((round, dict(values), at))

    def end(self, state):
        self._step("end")
        self.ended.append(state)


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(choose, "_module", lambda name: made)
    return made


def stop_after(rounds, error=KeyboardInterrupt):
    def on_round(done, _):
        if done == rounds:
            raise error

    return Watcher(on_round=on_round)


def test_all_evaluations_are_told_as_they_are_in_the_metrics(recorder, tmp_path):
    start_run(Config.from_dict(GIVEN), tmp_path / "run")
    [lines] = recorder.lines
    assert [round for round, _, _ in lines] == [2, 4, 6, 8, 10]
    assert [values for _, values, _ in lines] == [values_of(m) for m in metrics(tmp_path / "run")]
    spent = [values["seconds"] for _, values, _ in lines]
    assert [at - lines[0][2] for *_, at in lines] == pytest.approx(
        [s - spent[0] for s in spent], abs=1e-4
    )
    assert recorder.ended == ["finished"]
    names = set(lines[0][1])
    for view in ("server", "averaged", "mean", "reported", "corrected"):
        for key in ("test_accuracy", "test_loss", "train_accuracy", "train_loss"):
            assert f"{view}/{key}" in names
        assert {f"{view}_per_class/{k}" for k in range(10)} <= names
    plain = {"active", "active_mean", "staleness_mean", "staleness_max", "consensus_error"}
    assert plain | {"local_steps", "uploads", "bytes_up", "bytes_down", "seconds"} <= names


def test_metrics_of_ones_own_are_told_where_they_have_a_value(recorder, tmp_path):
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    given = iter([0.0])  # When the task is made.
    task = Supervised(
        nn.Linear(4, 2), (x, y), (x, y), clients=2, metrics={"odd": lambda *_: next(given, 0.25)}
    )
    given = iter([math.nan])
    options = {"rounds": 4, "evaluate_every": 2, "views": ["server"], "track": "wandb"}
    simulate(task, "fedavg", "always", out=tmp_path / "run", **options)
    [[(_, first, _), (_, last, _)]] = recorder.lines
    assert "server/odd" not in first
    assert last["server/odd"] == 0.25


def test_a_tracker_knows_the_run(recorder, tmp_path):
    start_run(Config.from_dict(GIVEN), tmp_path / "run")
    [(run, kept)] = recorder.begun
    assert (run.name, run.group_name, kept) == ("run", None, {})
    settings = run.settings()
    assert settings["algorithm.name"] == "fedpbc"
    assert settings["train.decay"] is True
    assert settings["views"] == '["server", "averaged", "mean", "reported", "corrected"]'
    assert "track" not in settings
    assert run.tags()["links"] == "bernoulli_varying"


def test_tracking_changes_no_bits_and_is_no_part_of_the_run(recorder, tmp_path):
    start_run(Config.from_dict(GIVEN), tmp_path / "tracked")
    plain = {key: value for key, value in GIVEN.items() if key != "track"}
    start_run(Config.from_dict(plain), tmp_path / "plain")
    assert_same_run(tmp_path / "tracked", tmp_path / "plain")


def test_a_run_that_goes_on_is_the_same_and_is_told_everything(recorder, tmp_path):
    often = {**GIVEN, "checkpoint_every": 3}
    with pytest.raises(KeyboardInterrupt):
        start_run(Config.from_dict(often), tmp_path / "run", watcher=stop_after(8))
    assert recorder.ended == ["killed"]
    assert json.loads((tmp_path / "run" / "tracking.json").read_text()) == {
        "group": None,
        "trackers": {"wandb": {"id": "1", "state": "killed"}},
    }
    resume_run(tmp_path / "run")
    assert recorder.begun[1][1] == {"id": "1"}
    assert [round for round, *_ in recorder.lines[1]] == [2, 4, 6, 8, 10]
    assert recorder.ended == ["killed", "finished"]
    start_run(Config.from_dict(often), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_trackers_may_change_in_the_middle(recorder, tmp_path):
    run = tmp_path / "run"
    plain = {key: value for key, value in GIVEN.items() if key != "track"}
    config = Config.from_dict({**plain, "checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        start_run(config, run, watcher=stop_after(3))
    assert not (run / "tracking.json").exists()
    with pytest.raises(KeyboardInterrupt):
        resume_run(run, track=["mlflow"], watcher=stop_after(5))
    with pytest.raises(KeyboardInterrupt):
        resume_run(run, watcher=stop_after(7))  # It keeps what it was told last.
    assert len(recorder.begun) == 2
    ran("resume", run, "--track", "none")
    assert len(recorder.begun) == 2
    start_run(Config.from_dict(plain), tmp_path / "whole")
    assert final(run) == final(tmp_path / "whole")


def test_a_finished_run_is_told_to_whom_it_is_new(recorder, tmp_path):
    run = tmp_path / "run"
    ran("run", *DIGITS, "--rounds", 4, "--evaluate-every", 2, "--out", run)
    before = content(run)
    ran("resume", run, "--track", "mlflow")
    assert [round for round, *_ in recorder.lines[0]] == [2, 4]
    assert recorder.ended == ["finished"]
    assert recorder.begun[0][0].tags()["algorithm"] == "fedpbc"
    ran("resume", run, "--track", "mlflow")
    assert len(recorder.begun) == 1
    assert {k: v for k, v in content(run).items() if k != "tracking.json"} == before


def test_a_damaged_tracking_file_is_a_new_beginning(recorder, tmp_path):
    config = Config.from_dict({**GIVEN, "checkpoint_every": 1})
    for damage in ("{", '{"group": 3, "trackers": {}}', '{"group": null, "trackers": []}'):
        with pytest.raises(KeyboardInterrupt):
            start_run(config, tmp_path / "run", watcher=stop_after(4))
        (tmp_path / "run" / "tracking.json").write_text(damage)
        resume_run(tmp_path / "run")
        assert recorder.begun[-1][1] == {}
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("step", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_switched_off_and_the_run_goes_on(recorder, tmp_path, step):
    recorder.fails = step
    options = ("--rounds", 6, "--evaluate-every", 2, "--track", "mlflow")
    ended = fedpbc("run", *DIGITS, *options, "--out", tmp_path / "run")
    assert ended.code == 0
    assert ended.err == (
        "fedpbc: note: mlflow is switched off, the run continues: OSError: the disk is full\n"
    )
    ran("run", *DIGITS, *options[:-2], "--out", tmp_path / "plain")
    assert_same_run(tmp_path / "run", tmp_path / "plain")
    # What was missed is made up for.
    recorder.fails = ""
    ran("resume", tmp_path / "run")
    assert [round for round, *_ in recorder.lines[-1]] == [2, 4, 6]
    assert recorder.ended == ["finished"]


def test_what_is_wrong_from_the_start_is_an_error_at_once(recorder, tmp_path):
    recorder.fails = "check"
    with pytest.raises(ConnectionError):
        start_run(Config.from_dict(GIVEN), tmp_path / "run")
    assert content(tmp_path) == {}


def test_a_run_that_fails_is_said_to_have_failed(recorder, tmp_path):
    wild = {**GIVEN, "train": {"learning_rate": 1e30}, "links": "always"}
    with pytest.raises(DivergedError):
        start_run(Config.from_dict(wild), tmp_path / "run")
    assert recorder.ended == ["failed"]


def test_every_run_of_a_comparison_is_tracked_in_its_group(recorder, tmp_path):
    folder = tmp_path / "cmp"
    compared(folder, "fedpbc,fedavg", track=["wandb"])
    assert {run.name for run, _ in recorder.begun} == {"fedpbc/seed-1", "fedavg/seed-1"}
    assert {run.group_name for run, _ in recorder.begun} == {"cmp"}
    assert {run.shared_folder for run, _ in recorder.begun} == {tmp_path.resolve()}
    # A run by itself still belongs to it.
    ran("resume", folder / "fedavg" / "seed-1", "--track", "mlflow")
    assert recorder.begun[-1][0].name == "fedavg/seed-1"
    # Who looks on may change; a finished comparison is told to another tracker.
    compared(folder, "fedpbc,fedavg", track=["tensorboard"])
    assert len(recorder.begun) == 5
    assert ComparisonDirectory(folder).load_plan().first().general.track == ["tensorboard"]
    assert ComparisonDirectory(folder).load_plan(["none"]).first().general.track is None


def test_a_server_that_goes_away_does_not_make_runs_of_a_grid_fail(recorder, tmp_path):
    told = []
    cells = [GridCell(tmp_path / str(k), {**GIVEN, "seed": k}) for k in range(2)]

    def on_progress(progress):
        recorder.fails = "check"
        told.append(progress)

    assert run_grid(cells, 1, on_progress) == [None, None]
    assert recorder.ended == ["finished", "finished"]
    recorder.fails = "log"
    [cell] = [GridCell(tmp_path / "2", GIVEN)]
    assert run_grid([cell], 1, told.append) == [None]
    [note] = [progress.note for progress in told if progress.note]
    assert note == "wandb is switched off, the run continues: OSError: the disk is full"


def test_from_python(recorder, tmp_path):
    options = {"links": {"name": "bernoulli", "p": 0.5}, "rounds": 20, "track": ["mlflow"]}
    simulate(quadratic(), "fedpbc", **options, out=tmp_path / "a")
    [(run, _)] = recorder.begun
    assert run.settings()["links.p"] == 0.5
    assert [round for round, *_ in recorder.lines[0]] == [10, 20]
    assert "mean/distance" in recorder.lines[0][0][1]
    assert "mean/test_accuracy" not in recorder.lines[0][0][1]
    compare(lambda _: quadratic(), ["fedavg"], seeds=[3], **options, out=tmp_path / "b")
    assert (recorder.begun[1][0].name, recorder.begun[1][0].group_name) == ("fedavg/seed-3", "b")


def test_an_interrupted_run_from_python_goes_on(recorder, tmp_path):
    def interrupt(done, _):
        if done == 15:
            raise KeyboardInterrupt

    options = {"links": "always", "rounds": 20, "track": "mlflow", "out": tmp_path / "a"}
    with pytest.raises(KeyboardInterrupt):
        simulate(quadratic(), "fedavg", **options, on_round=interrupt)
    result = simulate(quadratic(), "fedavg", **options)
    assert recorder.begun[1][1] == {"id": "1"}
    assert recorder.ended == ["killed", "finished"]
    assert [metrics.round for metrics in result.metrics] == [10, 20]
    recorder.fails = "log"
    options["out"] = tmp_path / "b"
    with pytest.warns(RuntimeWarning, match="mlflow is switched off"):
        again = simulate(quadratic(), "fedavg", **options)
    assert [m.views for m in again.metrics] == [m.views for m in result.metrics]


def test_overwriting_forgets_the_tracked_run_and_nothing_else(recorder, tmp_path):
    run = tmp_path / "run"
    start_run(Config.from_dict(GIVEN), run)
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.out.tfevents.1.me.2").write_bytes(b"old")
    (run / "tensorboard" / "notes.txt").write_text("mine")
    start_run(Config.from_dict({**GIVEN, "track": []}), run, overwrite=True)
    assert not RunDirectory(run).tracking_path.exists()
    assert [file.name for file in (run / "tensorboard").iterdir()] == ["notes.txt"]
    assert timeless(run)[-1]["round"] == 10
