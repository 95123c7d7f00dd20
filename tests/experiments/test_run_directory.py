from __future__ import annotations

import errno
import json
import tomllib

import pytest
import torch

from fedpbc import Config, start_run
from fedpbc.experiments.checkpoints import KEPT
from fedpbc.experiments.run_directory import RunDirectory, is_report
from fedpbc.storage.manifest import write_manifest
from tests.commandline import DIGITS, content, fedpbc, metrics, ran, refused, write_check

EVALUATION = {"test_accuracy", "test_loss", "train_accuracy", "train_loss", "per_class"}
PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ["--evaluate-every", 4, "--set", "links.p=0.5", "--seed", 3]
    ran("run", *DIGITS, "--rounds", 10, *options, "--out", folder)
    return folder


def test_a_run_leaves_these_files(run):
    names = {"config.toml", "metrics.jsonl", "final.safetensors", "summary.json", ".lock"}
    names |= {"fleet.safetensors", "fedpbc-manifest.json"}
    assert {p.name for p in run.iterdir() if not p.name.startswith("checkpoint-")} == names


def test_metrics_are_one_object_a_line(run):
    text = (run / "metrics.jsonl").read_text()
    assert text.endswith("}\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["round"] for line in lines] == [4, 8, 10]
    for line in lines:
        assert 0 <= line["active"] <= 8
        assert line["views"].keys() == {"server", "averaged", "mean", "reported", "corrected"}
        for evaluation in line["views"].values():
            assert evaluation.keys() == EVALUATION
            assert 0 <= evaluation["test_accuracy"] <= 1
            assert 0 <= evaluation["train_accuracy"] <= 1
            assert evaluation["test_loss"] > 0
            assert evaluation["train_loss"] > 0
            assert len(evaluation["per_class"]) == 10
        assert line["staleness_mean"] <= line["staleness_max"]
        assert line["consensus_error"] > 0
        # Everyone trains in every round.
        assert line["local_steps"] == 5 * 8 * line["round"]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    uploads = lines[-1]["uploads"]
    assert uploads == round(lines[-1]["active_mean"] * 10)
    assert 20 < uploads < 60
    for line in lines:
        assert line["bytes_up"] == line["bytes_down"] == 4 * PARAMETERS * line["uploads"]


def test_the_summary_tells_how_it_ended(run):
    summary = json.loads((run / "summary.json").read_text())
    last = metrics(run)[-1]
    assert summary["views"] == last["views"]
    assert summary["rounds"] == 10
    assert summary["clients"] == 8
    assert summary["parameters"] == PARAMETERS
    assert (summary["algorithm"], summary["links"], summary["data"], summary["seed"]) == (
        "fedpbc",
        "bernoulli_varying",
        "digits",
        3,
    )
    cost = summary["cost"]
    assert cost["local_steps"] == last["local_steps"]
    assert cost["uploads"] == last["uploads"]
    assert cost["bytes_up"] == cost["bytes_down"] == 4 * PARAMETERS * last["uploads"]
    assert cost["models_on_server"] == {
        "server": 1,
        "averaged": 2,
        "mean": None,
        "reported": 9,
        "corrected": 10,
    }
    assert cost["models_on_client"] == 1
    assert summary["engine"].startswith("stacked: ")
    assert summary["versions"]["torch"] == torch.__version__


def test_every_setting_is_written_down(run):
    written = tomllib.loads((run / "config.toml").read_text())
    assert {"rounds", "seed", "clients", "engine", "evaluate_every", "views"} < written.keys()
    assert {"algorithm", "task", "data", "train", "links", "downlink"} < written.keys()
    assert written["train"].keys() == {
        "local_steps",
        "batch_size",
        "learning_rate",
        "decay",
        "optimizer",
        "momentum",
        "proximal",
        "global_learning_rate",
    }
    assert written["clients"] == 8
    assert written["seed"] == 3


def test_what_was_chosen_by_default_is_written_down_too(tmp_path):
    # A later version with other defaults must run it as it was.
    ran("run", "--data", "digits", "--rounds", 1, "--out", tmp_path / "run")
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["clients"] == 100
    assert written["model"]["name"] == "mlp"


def test_quadratics_have_no_accuracy(tmp_path):
    ran("run", write_check(tmp_path), "--out", tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert [line["round"] for line in lines] == [10, 20, 30, 40, 50, 60]
    for line in lines:
        for evaluation in line["views"].values():
            assert evaluation.keys() >= EVALUATION
            assert evaluation["test_accuracy"] is None
            assert evaluation["per_class"] is None
            assert evaluation["test_loss"] >= 0


def test_only_the_views_that_were_asked_for(tmp_path):
    ran("run", *DIGITS, "--rounds", 4, "--views", "reported,server", "--out", tmp_path / "run")
    [line] = metrics(tmp_path / "run")
    assert line["views"].keys() == {"server", "reported"}
    assert line["consensus_error"] is None
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["views"].keys() == {"server", "reported"}


def test_overwriting_starts_anew_and_leaves_nothing_of_the_old(tmp_path):
    check, run = write_check(tmp_path), tmp_path / "run"
    ran("run", check, "--set", "checkpoint_every=7", "--out", run)
    assert (run / "inputs").is_dir()
    ran("run", *DIGITS, "--rounds", 2, "--out", run, "--overwrite")
    fresh = tmp_path / "fresh"
    ran("run", *DIGITS, "--rounds", 2, "--out", fresh)
    assert content(run).keys() == content(fresh).keys()
    assert [line["round"] for line in metrics(run)] == [2]


def test_a_folder_left_by_a_run_that_never_began_is_free(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_manifest(run, "run", ["inputs/links-a.npy"])
    (run / "inputs").mkdir(parents=True)
    (run / "inputs" / "links-a.npy").write_bytes(b"half")
    (run / ".lock").touch()
    (run / ".config.toml.123.tmp").write_text("rou")
    ran("run", *DIGITS, "--rounds", 2, "--out", run)
    assert (run / "summary.json").is_file()
    assert not (run / "inputs").exists()
    assert not list(run.glob(".config*"))


def test_an_empty_folder_is_free(tmp_path):
    ran("run", *DIGITS, "--rounds", 2, "--out", tmp_path)
    assert (tmp_path / "summary.json").is_file()


def test_old_checkpoints_go(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    folder.path.mkdir()
    for rounds in (1, 5, 9, 10, 100):
        folder.checkpoints.save(rounds, {"round": rounds})
        assert folder.checkpoints.load() == ({"round": rounds}, [])
    names = [p.name for p in folder.checkpoints.paths()]
    assert names == ["checkpoint-0000100.safetensors", "checkpoint-0000010.safetensors"]
    assert len(names) == KEPT


def test_checkpoints_of_later_rounds_go_when_the_run_goes_on_from_an_earlier_one(tmp_path):
    folder = RunDirectory(tmp_path / "run")
    folder.path.mkdir()
    for rounds in (4, 90, 100, 5):
        folder.checkpoints.save(rounds, {"round": rounds})
    # They were damaged: with them, the one at 5 would be the third, and be removed at once.
    names = [p.name for p in folder.checkpoints.paths()]
    assert names == ["checkpoint-0000005.safetensors"]


def test_a_new_run_comes_to_the_same_bits_with_and_without_checkpoints(tmp_path):
    given = {"data": "digits", "clients": 8, "rounds": 12, "links": {"name": "markov", "p": 0.5}}
    from tests.commandline import final

    start_run(Config.from_dict(given), tmp_path / "a")
    start_run(Config.from_dict({**given, "checkpoint_every": 1}), tmp_path / "b")
    assert final(tmp_path / "a") == final(tmp_path / "b")


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedpbc.storage.tensors.write_safetensors", full)
    line = refused(fedpbc("run", *DIGITS, "--rounds", 2, "--out", tmp_path / "run"))
    assert "checkpoint-0000000.safetensors cannot be written" in line
    assert "No space left" in line


def test_a_folder_named_as_a_checkpoint_stays(tmp_path):
    from fedpbc.experiments.checkpoints import Checkpoints

    mine = tmp_path / "checkpoint-0000003.safetensors"
    mine.mkdir()
    checkpoints = Checkpoints(tmp_path)
    for rounds in (1, 2):
        checkpoints.save(rounds, {"rounds": rounds})
    assert checkpoints.paths()[0] == mine
    checkpoints.remove()
    assert checkpoints.paths() == [mine]


def test_a_link_to_a_report_is_no_report(run, tmp_path):
    page = tmp_path / "page.html"
    ran("report", run, "--out", page)
    link = tmp_path / "link.html"
    link.symlink_to(page)
    assert is_report(page)
    assert not is_report(link)
