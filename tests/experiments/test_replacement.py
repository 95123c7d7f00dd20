"""``--overwrite``: only a run's own files go, and only when the new one has done a round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedpbc import Config, start_run
from fedpbc.experiments import replacement
from fedpbc.experiments.replacement import recover_run
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.storage.manifest import MANIFEST
from tests.commandline import DIGITS, assert_same_run, content, fedpbc, ran, refused, write_check

PLUGIN = """
from fedpbc import register_algorithm
from fedpbc.algorithms import FedAvg

class Forgetful(FedAvg):
    name = "forgetful"

    def __init__(self, init):
        super().__init__(init)
        self.secret = object()

register_algorithm(Forgetful)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    ran("run", *DIGITS, "--rounds", 3, "--out", tmp_path / "run")
    return tmp_path / "run"


def users_folder(folder: Path, name: str) -> Path:
    """A configuration written by hand, among files of the user's own."""
    write_check(folder, rounds=12, clients=3)
    (folder / "inputs").mkdir()
    for file in ("targets.npy", "timetable.npy"):
        (folder / file).rename(folder / "inputs" / file)
    (folder / "inputs" / "measurements.csv").write_text("1,2,3\n")
    text = (folder / "check.toml").read_text()
    for file in ("targets.npy", "timetable.npy"):
        text = text.replace(f'"{file}"', f'"inputs/{file}"')
    text = text.replace("rounds = 60", "rounds = 12")
    if name == "compare.toml":
        text = text.replace('algorithm = "fedau"', 'algorithms = ["fedavg"]')
        text = text.replace("seed = 0", "seeds = [0]")
    (folder / "check.toml").unlink()
    (folder / name).write_text("# my comments\n" + text)
    return folder / name


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_users_own_files_stay(tmp_path, monkeypatch, command):
    file = users_folder(tmp_path, "config.toml" if command == "run" else "compare.toml")
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    line = refused(fedpbc(command, file.name, "--out", ".", "--overwrite"))
    assert f"holds other files (its {file.name} was not written by a" in line
    assert content(tmp_path) == before
    # In a folder of its own it works.
    ran(command, file.name, "--out", "results")
    assert (tmp_path / "inputs" / "measurements.csv").is_file()


def test_files_beside_a_run_stay_when_it_is_replaced(run):
    (run / "notes.txt").write_text("mine")
    (run / "inputs").mkdir()
    (run / "inputs" / "mine.csv").write_text("1,2")
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "mine").write_text("x")
    ran("run", *DIGITS, "--rounds", 2, "--out", run, "--overwrite")
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "inputs" / "mine.csv").read_text() == "1,2"
    assert (run / "tensorboard" / "mine").read_text() == "x"
    assert ran("verify", run).out.endswith("files as written\n")


@pytest.mark.parametrize(
    "options",
    [
        ["--algorithm", "forgetful", "--plugin", "forgetful.py"],
        ["--learning-rate", "1e30", "--links", "always"],
        ["--engine", "ray", "--ray-address", "127.0.0.1:1"],
        ["--set", "train.optimizer=adam", "--learning-rate", "1e30", "--links", "always"],
        ["--set", "train.optimizer=adam", "--learning-rate", "1e39"],
        ["--set", "train.proximal=1e39"],
    ],
    ids=["state that cannot be saved", "diverges", "no cluster", "adam", "rate", "proximal"],
)
def test_what_goes_wrong_at_the_start_leaves_the_earlier_run(run, monkeypatch, options):
    monkeypatch.chdir(run.parent)
    Path("forgetful.py").write_text(PLUGIN)
    before = content(run)
    line = refused(fedpbc("run", *DIGITS, "--rounds", 3, *options, "--out", run, "--overwrite"))
    assert content(run) == before
    if "diverged" in line:
        assert f"the earlier run in {run} is kept" in line


def test_a_state_that_cannot_be_saved_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("forgetful.py").write_text(PLUGIN)
    options = ["--algorithm", "forgetful", "--plugin", "forgetful.py", "--out", "new"]
    assert "a checkpoint cannot hold a object" in refused(fedpbc("run", *DIGITS, *options))
    assert not Path("new").exists()


def test_the_replaced_run_is_the_run_alone(run, tmp_path):
    options = [*DIGITS, "--rounds", 4, "--set", "links.p=0.5", "--reported", "disk"]
    ran("run", *options, "--out", run, "--overwrite")
    ran("run", *options, "--out", tmp_path / "alone")
    assert_same_run(tmp_path / "alone", run)
    assert content(run).keys() == content(tmp_path / "alone").keys()


class Killed(BaseException):
    """Stands for a process that is gone."""


@pytest.mark.parametrize("step", [1, 4, 6, 7, 9, 11])
def test_a_replacement_killed_at_any_step_is_completed_or_dropped(run, tmp_path, monkeypatch, step):
    config = {"data": "digits", "clients": 8, "rounds": 4, "algorithm": "mifa"}
    start_run(Config.from_dict(config), tmp_path / "alone")
    earlier = tmp_path / "earlier"
    shutil.copytree(run, earlier)
    left = step
    replace, unlink = Path.replace, Path.unlink

    def die() -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    def counted_replace(self: Path, target: Path) -> Path:
        if ".next" in self.parts:
            die()
        return replace(self, target)

    def counted_unlink(self: Path, missing_ok: bool = False) -> None:
        if taking_place:
            die()
        unlink(self, missing_ok)

    taking_place = False
    take = replacement.take_place

    def take_place(path: Path) -> None:
        nonlocal taking_place
        taking_place = True
        take(path)
        taking_place = False

    monkeypatch.setattr("fedpbc.experiments.start.take_place", take_place)
    # A killed process tidies nothing up.
    monkeypatch.setattr("fedpbc.experiments.start.discard_staged", lambda path: None)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted_replace)
        patch.setattr(Path, "unlink", counted_unlink)
        try:
            start_run(Config.from_dict(config), run, overwrite=True)
            died = False
        except Killed:
            died = True
    marks = [(run / ".next" / mark).exists() for mark in ("ready", "moving")]
    begun = any(marks) or not (run / ".next").exists()
    recover_run(run)
    assert not (run / ".next").exists()
    assert RunDirectory(run).holds_run
    if died and not begun:
        assert_same_run(earlier, run)
    else:
        resume_run(run)
        assert_same_run(tmp_path / "alone", run)


def test_a_folder_of_the_users_with_the_name_of_ours_stays(run):
    (run / ".next").mkdir()
    (run / ".next" / "ready").write_text("mine")
    recover_run(run)
    assert (run / ".next" / "ready").read_text() == "mine"


def test_a_run_of_an_earlier_version_can_be_replaced(run):
    (run / MANIFEST).unlink()
    (run / "notes.txt").write_text("mine")
    ran("run", *DIGITS, "--rounds", 2, "--out", run, "--overwrite")
    assert (run / "notes.txt").is_file()
    assert (run / MANIFEST).is_file()


def test_what_goes_wrong_at_the_start_leaves_the_earlier_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--algorithms", "fedavg", "--seeds", "0", "--rounds", "2", "--jobs", "1", *DIGITS]
    ran("compare", *options, "--out", "compared")
    Path("forgetful.py").write_text(PLUGIN)
    before = content(Path("compared"))
    more = ["--overwrite", "--out", "compared", "--seeds", "0", "--rounds", "2", "--jobs", "1"]
    wrong = ["--algorithms", "fedavg,forgetful", "--plugin", "forgetful.py"]
    refused(fedpbc("compare", *DIGITS, *more, *wrong))
    assert content(Path("compared")) == before
    refused(fedpbc("compare", *DIGITS, *more, "--learning-rate", "1e30", "--links", "always"))
    assert content(Path("compared")) == before


SEARCH = ("tune", *DIGITS, "--candidates", "1", "--seeds", "0", "--rounds", "2", "--jobs", "1")
TABLE = (
    *("paper", "table1", "--data", "digits", "--links", "always", "--seeds", "0", "--rounds", "2"),
    *("--set", "clients=3", "--tuned", "no", "--jobs", "1"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", [SEARCH, TABLE], ids=["tune", "paper"])
def test_what_goes_wrong_at_the_start_leaves_earlier_results(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    ran(*command, "--algorithms", "fedavg", "--out", "results")
    Path("forgetful.py").write_text(PLUGIN)
    before = content(Path("results"))
    wrong = ["--algorithms", "fedavg,forgetful", "--plugin", "forgetful.py"]
    refused(fedpbc(*command, *wrong, "--out", "results", "--overwrite"))
    assert content(Path("results")) == before


def test_a_link_in_place_of_the_inputs_is_not_followed(tmp_path):
    """The new run's inputs would replace files elsewhere."""
    check = write_check(tmp_path, clients=3)
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    ran("run", check, "--out", run)
    shutil.move(run / "inputs", elsewhere)
    (run / "inputs").symlink_to(elsewhere)
    before = content(tmp_path)
    line = refused(fedpbc("run", check, "--out", run, "--seed", 3, "--overwrite"))
    assert line == f"{run / 'inputs'} is a link: a run's folder has none"
    # Nor by a replacement that was killed.
    (run / ".next").mkdir()
    (run / ".next" / "moving").write_text("")
    assert refused(fedpbc("resume", run)) == line
    (run / ".next" / "moving").unlink()
    (run / ".next").rmdir()
    assert content(tmp_path) == before
