"""TensorBoard's own readers find what metrics.jsonl has, to the bit of its single precision."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from fedpbc.experiments.comparison_directory import ComparisonDirectory
from fedpbc.experiments.tracking.tensorboard import TensorBoardTracker
from fedpbc.experiments.tracking.tracker import TrackedRun, values_of
from tests.commandline import DIGITS, assert_same_run, content, fedpbc, metrics, ran

pytest.importorskip("tensorboard", reason="needs the extra: pip install 'fedpbc[tensorboard]'")

pytestmark = pytest.mark.slow

TRACKED = (*DIGITS, "--rounds", 12, "--evaluate-every", 3, "--track", "tensorboard")


def accumulated(run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return found


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Everything that is drawn: (step, value) by tag."""
    found = accumulated(run)
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in metrics(run):
        for tag, exact in values_of(line).items():
            value = float(np.float32(exact))
            found.setdefault(tag, []).append((line["round"], value))
            if tag.endswith(("test_accuracy", "test_loss")):
                for over in ("local_steps", "uploads", "bytes_up", "bytes_down"):
                    found.setdefault(f"over_{over}/{tag}", []).append((line[over], value))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    ran("run", *TRACKED, "--out", folder)
    return folder


def test_the_values_are_those_of_the_metrics_to_the_bit(run):
    assert scalars(run) == expected(run)
    assert scalars(run)["local_steps"] == [(3, 120), (6, 240), (9, 360), (12, 480)]
    last = metrics(run)[-1]
    assert scalars(run)["over_bytes_up/server/test_loss"][-1][0] == last["bytes_up"]


def test_relative_time_is_the_time_that_was_spent(run):
    found = accumulated(run).Scalars("seconds")
    spent = [line["seconds"] for line in metrics(run)]
    assert [e.wall_time - found[0].wall_time for e in found] == pytest.approx(
        [s - spent[0] for s in spent], abs=1e-4
    )


def test_the_page_hparams_has_the_configuration_and_how_it_ended(run):
    from tensorboard.plugins.hparams import api_pb2, metadata

    found = accumulated(run)
    content = found.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["algorithm.name"].string_value == "fedpbc"
    assert start.hparams["rounds"].number_value == 12
    assert start.hparams["train.decay"].bool_value
    assert start.hparams["folder"].string_value == "run"
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_SUCCESS


@pytest.mark.parametrize("kill", [{"at": "half a line", "n": 3}, {"at": "before rename", "n": 7}])
def test_a_killed_run_goes_on_and_nothing_shows_twice(fork_server, tmp_path, run, kill):
    broken = tmp_path / "run"
    start = ["run", *TRACKED, "--set", "checkpoint_every=5", "--out", broken]
    assert fork_server.run(*start, kill=kill).code == -signal.SIGKILL
    shown = scalars(broken)["active"]
    assert [step for step, _ in shown] == [line["round"] for line in metrics_so_far(broken)]
    assert fork_server.run("resume", broken).code == 0
    assert scalars(broken) == expected(broken)
    assert len(list((broken / "tensorboard").iterdir())) == 1
    kept = ("active", "mean/test_loss", "uploads")
    assert {tag: scalars(broken)[tag] for tag in kept} == {tag: scalars(run)[tag] for tag in kept}


def metrics_so_far(run: Path) -> list[dict]:
    """The whole lines, of a run that was killed."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def test_one_that_is_looking_on_forgets_what_it_has_seen(tmp_path):
    from tensorboard.backend.event_processing import plugin_event_accumulator

    told = TrackedRun(tmp_path, {}, {})
    first = TensorBoardTracker()
    first.begin(told, {})
    for round in (10, 20, 30):
        first.log(round, {"active": round}, at=round)
    looking = plugin_event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    looking.Reload()
    assert [event.step for event in looking.Tensors("active")] == [10, 20, 30]
    second = TensorBoardTracker()
    second.begin(told, {})
    second.log(10, {"active": 10}, at=40)
    looking.Reload()
    assert [event.step for event in looking.Tensors("active")] == [10]
    second.log(20, {"active": 20}, at=50)
    second.end("finished")
    looking.Reload()
    assert [event.step for event in looking.Tensors("active")] == [10, 20]


def test_each_run_of_a_comparison_has_its_own(tmp_path):
    folder = tmp_path / "compare"
    options = ("--algorithms", "fedpbc,fedavg", "--seeds", "1")
    ran("compare", *TRACKED, *options, "--jobs", 2, "--out", folder)
    cells = [folder / name / "seed-1" for name in ("fedpbc", "fedavg")]
    for cell in cells:
        assert scalars(cell) == expected(cell)
    plan = ComparisonDirectory(folder).load_plan(["none"])
    with ComparisonDirectory(folder).opened(plan, overwrite=True):
        pass
    for cell in cells:
        assert not (cell / "tensorboard").exists()
        assert not (cell / "tracking.json").exists()


def test_the_disk_is_full(tmp_path, monkeypatch, run):
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, written = RecordWriter.write, []

    def full(self, data):
        written.append(data)
        if len(written) > 9:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    ended = fedpbc("run", *TRACKED, "--out", tmp_path / "run")
    assert ended.code == 0
    assert ended.err.startswith(
        "fedpbc: note: tensorboard is switched off, the run continues: OSErr"
    )
    assert len(ended.err.splitlines()) == 1
    assert_same_run(tmp_path / "run", run)


def test_untracked_runs_leave_nothing(tmp_path):
    ran("run", *TRACKED[:-2], "--out", tmp_path / "run")
    assert not {"tracking.json", "tensorboard"} & set(content(tmp_path / "run"))
