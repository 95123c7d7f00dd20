from __future__ import annotations

import sys

import pytest

from fedpbc import Config, compare, simulate
from fedpbc.errors import InputError, MissingExtraError
from fedpbc.experiments.tracking import TRACKERS, check_trackers, checked_names
from tests.commandline import DIGITS, content, fedpbc, ran, refused
from tests.small_runs import quadratic


def test_names_are_checked():
    assert checked_names(None) == []
    assert checked_names("none") == checked_names(["none"]) == checked_names([]) == []
    assert checked_names(list(TRACKERS)) == list(TRACKERS)
    for wrong in (["tensorbord"], "aim", ["mlflow", "none"], ["wandb", "wandb"], [3], 3, {"a": 1}):
        with pytest.raises(InputError, match=r"^track is "):
            checked_names(wrong)


@pytest.mark.parametrize("command", ["run", "compare", "paper fig2"])
def test_an_unknown_tracker_is_one_line_and_nothing_is_written(tmp_path, command):
    options = DIGITS if command != "paper fig2" else ()
    where = ("--out", tmp_path / "out")
    line = refused(fedpbc(*command.split(), *options, "--track", "tensorbord", *where))
    assert line.startswith("track is 'tensorbord', but should be one of tensorboard, mlflow, wandb")
    assert "did you mean 'tensorboard'?" in line
    assert content(tmp_path) == {}


def test_an_unknown_tracker_does_not_touch_a_run_that_is_there(tmp_path):
    ran("run", *DIGITS, "--rounds", 2, "--out", tmp_path / "run")
    before = content(tmp_path)
    assert "track is 'aim'" in refused(fedpbc("resume", tmp_path / "run", "--track", "aim"))
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", TRACKERS)
def test_without_the_extra_it_says_which_one(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    if name == "tensorboard":
        monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fedpbc\[{name}\]'$"):
        check_trackers([name])
    line = refused(fedpbc("run", *DIGITS, "--track", name, "--out", tmp_path / "run"))
    assert line == f"tracking with '{name}' needs an extra: pip install 'fedpbc[{name}]'"
    line = refused(fedpbc("compare", *DIGITS, "--track", name, "--out", tmp_path / "compare"))
    assert line == f"tracking with '{name}' needs an extra: pip install 'fedpbc[{name}]'"
    assert content(tmp_path) == {}


def test_in_a_file_it_is_a_list(tmp_path):
    (tmp_path / "a.toml").write_text('track = ["tensorboard"]\n')
    for wrong in ('"tensorboard"', "3", "[3]"):
        (tmp_path / "b.toml").write_text(f"track = {wrong}\n")
        assert "track is " in refused(fedpbc("run", tmp_path / "b.toml"))
    assert Config.from_dict({"track": ["tensorboard"]}).general.track == ["tensorboard"]
    assert Config.from_dict({"track": ["none"]}).general.track is None
    assert "track" not in Config.from_dict({"track": []}).to_dict()


def test_python_needs_a_folder_for_it():
    for call in (simulate, lambda task, **more: compare(lambda _: task, ["fedavg"], **more)):
        with pytest.raises(
            InputError, match="track is 'tensorboard', but should be given together"
        ):
            call(quadratic(), links="always", rounds=2, track="tensorboard")


def test_an_option_outranks_the_file(tmp_path):
    (tmp_path / "a.toml").write_text('track = ["wandb"]\nrounds = 2\n')
    ran("run", tmp_path / "a.toml", *DIGITS, "--track", "none", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "tracking.json").exists()
