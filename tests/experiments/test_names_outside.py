"""A folder that somebody sent names files elsewhere: they are never opened."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.advice.request import AdviceRequest, prepare_values
from fedpbc.experiments.overrides import configuration_values
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.storage.manifest import MANIFEST
from tests.commandline import fedpbc, ran, refused, write_check

_watched: list[tuple[str, set[str]]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _watched:
        name = arguments[0]
        if isinstance(name, str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(name))
            folder, opened = _watched[-1]
            if path.startswith(folder):
                opened.add(path)


# It cannot be removed again, so there is one for all tests.
sys.addaudithook(_hook)


@contextmanager
def opened_in(folder: Path) -> Iterator[set[str]]:
    """The files of a folder that are opened meanwhile, by whatever name."""
    opened: set[str] = set()
    _watched.append((str(folder.resolve()) + os.sep, opened))
    try:
        yield opened
    finally:
        _watched.pop()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A stopped run, a comparison, a search and advice, each with two files as inputs."""
    home = tmp_path_factory.mktemp("sender")
    file = write_check(home / "files", clients=4, dimensions=2, rounds=12)
    file.write_text(file.read_text().replace("rounds = 60", "rounds = 12"))
    ran("run", file, "--out", home / "run")
    for name in ("summary.json", "final.safetensors"):
        (home / "run" / name).unlink()
    options = ("--algorithms", "fedavg", "--seeds", 0, "--jobs", 1, "--out")
    ran("compare", file, *options, home / "compared")
    ran("tune", file, "--candidates", 1, *options, home / "searched")
    values, tuned, _ = prepare_values(configuration_values(file))
    with AdviceDirectory(home / "advised").opened(AdviceRequest(values, tuned)):
        pass
    shutil.copy(home / "searched" / "tuned-fedavg.toml", home / "advised" / "recommended.toml")
    (home / "advised" / "advice.json").write_text("{}")
    return home


@pytest.fixture
def received(folders, tmp_path, monkeypatch):
    """Copies of the folders, and ``outside``: files that would do as inputs."""
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True, symlinks=True)
    shutil.copytree(folders / "files", tmp_path / "outside")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def name_another(file: Path, how: str) -> None:
    """Let a configuration use the targets and the timetable outside of its folder."""
    text = file.read_text()
    outside = file.parent.parent.resolve() / "outside"
    for name, other in (("task-targets.npy", "targets.npy"), ("links-file.npy", "timetable.npy")):
        if how == "link":
            copy = file.parent / "inputs" / name
            copy.unlink()
            copy.symlink_to(outside / other)
        else:
            prefix = {"parent": "../outside", "absolute": str(outside), "home": "~/outside"}[how]
            assert f"inputs/{name}" in text
            text = text.replace(f"inputs/{name}", f"{prefix}/{other}")
    file.write_text(text)


def reseal(folder: Path) -> None:
    """Make the checksums in a folder's manifest fit what is there now."""
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    content["checksums"] = {
        name: sha256((folder / name).read_bytes()).hexdigest()
        for name in content.get("checksums", {})
        if (folder / name).exists()
    }
    path.write_text(json.dumps(content))


def unmarked(folder: Path) -> None:
    """Leave nothing by which a folder shows that a run wrote it, but for its configuration."""
    for path in [*folder.iterdir()]:
        if path.name not in ("config.toml", "inputs") and path.is_file():
            path.unlink()


HOW = ("link", "parent", "absolute", "home")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("manifest", ["resealed", "removed"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("resume", "run"),
        ("theory", "run"),
        ("theory", "run/config.toml"),
        ("links", "run"),
        ("run", "run/config.toml", "--out", "new"),
        ("compare", "run/config.toml", "--out", "new"),
    ],
    ids=" ".join,
)
def test_a_runs_folder_names_no_file_elsewhere(received, arguments, how, manifest):
    name_another(Path("run/config.toml"), how)
    if manifest == "resealed":
        reseal(Path("run"))
    else:
        Path("run", MANIFEST).unlink()
    with opened_in(received / "outside") as opened:
        line = refused(fedpbc(*arguments))
    assert not opened
    assert "targets" in line or "links.file" in line or "inputs" in line
    assert not Path("new").exists()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "arguments", [("resume", "run"), ("theory", "run"), ("links", "run")], ids=" ".join
)
def test_nor_does_one_that_holds_nothing_but_a_configuration(received, arguments, how):
    name_another(Path("run/config.toml"), how)
    unmarked(Path("run"))
    with opened_in(received / "outside") as opened:
        refused(fedpbc(*arguments))
    assert not opened


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("manifest", ["resealed", "removed"])
@pytest.mark.parametrize("command", ["verify", "report"])
def test_looking_at_a_runs_folder_opens_no_file_elsewhere(received, command, how, manifest):
    name_another(Path("run/config.toml"), how)
    if manifest == "resealed":
        reseal(Path("run"))
    else:
        Path("run", MANIFEST).unlink()
    with opened_in(received / "outside") as opened:
        assert fedpbc(command, "run").code in (0, 2)
    assert not opened


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["link", "parent"])
@pytest.mark.parametrize("manifest", ["resealed", "removed"])
@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        ("compared/compare.toml", ("resume", "compared")),
        ("compared/compare.toml", ("compare", "--out", "compared", "--seeds", "0-1")),
        ("compared/compare.toml", ("compare", "compared/compare.toml", "--out", "new")),
        ("compared/compare.toml", ("verify", "compared")),
        ("compared/compare.toml", ("report", "compared")),
        ("searched/tune.toml", ("resume", "searched")),
        ("searched/tuned.toml", ("compare", "searched/tuned.toml", "--out", "new")),
        ("searched/tuned-fedavg.toml", ("run", "searched/tuned-fedavg.toml", "--out", "new")),
        ("searched/tune.toml", ("verify", "searched")),
        ("advised/advise.toml", ("resume", "advised")),
        ("advised/advise.toml", ("verify", "advised")),
        ("advised/recommended.toml", ("run", "advised/recommended.toml", "--out", "new")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nor_does_a_plan_name_one(received, plan, arguments, how, manifest):
    name_another(Path(plan), how)
    folder = Path(plan).parent
    if arguments[0] == "resume":
        (folder / "tuning.json").unlink(missing_ok=True)
    if manifest == "resealed":
        reseal(folder)
    else:
        (folder / MANIFEST).unlink()
    with opened_in(received / "outside") as opened:
        ended = fedpbc(*arguments)
    assert not opened
    assert ended.code == 2 or arguments[0] in ("verify", "report")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "entry",
    [
        '[algorithms.mine]\nname = "fedavg"\nlinks = {{name = "table"}}\n"links.file" = "{}"\n',
        '[algorithms.mine]\nname = "fedavg"\n[algorithms.mine.links]\nname = "table"\n'
        'file = "{}"\n',
        '[algorithms.mine]\nname = "fedavg"\n[algorithms.mine.task]\nname = "quadratic"\n'
        'targets = "{}"\n',
    ],
)
def test_nor_does_an_entry_of_a_plan(received, entry):
    with Path("compared/compare.toml").open("a") as file:
        file.write(entry.format("../outside/timetable.npy"))
    reseal(Path("compared"))
    with opened_in(received / "outside") as opened:
        assert "'../outside/timetable.npy'" in refused(fedpbc("resume", "compared"))
    assert not opened


def test_nor_does_a_candidate_of_a_search(received):
    plan = Path("searched/tune.toml")
    text = plan.read_text()
    assert '"train.learning_rate" = ' in text
    changed = text.replace(
        '"train.learning_rate" = ',
        '"links.file" = "../outside/timetable.npy"\n"train.learning_rate" = ',
    )
    if "{ " in text:  # Candidates may be written on one line each.
        changed = text.replace(
            '"train.learning_rate" = ',
            '"links.file" = "../outside/timetable.npy", "train.learning_rate" = ',
        )
    plan.write_text(changed)
    Path("searched/tuning.json").unlink()
    reseal(Path("searched"))
    with opened_in(received / "outside") as opened:
        assert "links.file is '../outside/timetable.npy'" in refused(fedpbc("resume", "searched"))
    assert not opened


@pytest.mark.parametrize(
    "arguments", [("theory", "run"), ("links", "run"), ("resume", "run")], ids=" ".join
)
def test_a_folder_without_marks_runs_no_plugin(received, arguments):
    Path("outside/mine.py").write_text("raise SystemExit('ran')")
    Path("run/inputs/mine.py").write_text("raise SystemExit('ran')")
    text = Path("run/config.toml").read_text()
    for name, words in (
        ("../outside/mine.py", "a file in run"),
        ("inputs/mine.py", "has a plugin that you have not run on this machine"),
    ):
        unmarked(Path("run"))
        Path("run/config.toml").write_text(f'plugins = ["{name}"]\n{text}')
        assert words in refused(fedpbc(*arguments))


def test_a_configuration_of_ones_own_names_files_anywhere(received):
    Path("own").mkdir()
    text = Path("outside/check.toml").read_text()
    for prefix in ("../outside/", f"{received}/outside/", "~/outside/"):
        named = text.replace('"targets.npy"', f'"{prefix}targets.npy"')
        Path("own/my.toml").write_text(named.replace('"timetable.npy"', f'"{prefix}timetable.npy"'))
        ran("run", "own/my.toml", "--out", "new", "--overwrite")
    Path("own/link.npy").symlink_to(received / "outside" / "targets.npy")
    Path("own/my.toml").write_text(
        Path("own/my.toml").read_text().replace("~/outside/targets.npy", "link.npy")
    )
    ran("run", "own/my.toml", "--out", "new", "--overwrite")
    assert np.load("new/inputs/task-targets.npy").shape == (4, 2)


def test_a_runs_tracking_leads_to_no_folder_elsewhere(received):
    run = RunDirectory("compared/fedavg/seed-0")
    run.save_tracking(Path("compared"), {})
    assert run.load_tracking() == (run.path / "../..", {})
    for group in ("../../..", "../../../outside", str(received / "outside"), "/"):
        run.tracking_path.write_text(json.dumps({"group": group, "trackers": {}}))
        assert run.load_tracking() == (None, {})


@pytest.mark.parametrize(
    "file",
    ["run/config.toml", "compared/compare.toml", "searched/tune.toml", "advised/advise.toml"],
)
@pytest.mark.parametrize("manifest", ["kept", "removed"])
@pytest.mark.parametrize("command", ["resume", "verify", "report"])
def test_a_plan_that_is_a_link_is_not_followed(received, file, manifest, command):
    plan = Path(file)
    shutil.move(plan, "outside")
    plan.symlink_to(received / "outside" / plan.name)
    if manifest == "removed":
        (plan.parent / MANIFEST).unlink()
    with opened_in(received / "outside") as opened:
        ended = fedpbc(command, plan.parent)
    assert not opened
    assert ended.code == 2 or command != "resume"
