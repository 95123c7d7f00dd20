"""A folder that somebody sent: its plugins need ``--trust``, and it harms no other file."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from fedpbc import InputError
from fedpbc.experiments import trust
from fedpbc.experiments.resume import resume_run
from fedpbc.storage.manifest import MANIFEST
from tests.commandline import DIGITS, content, fedpbc, ran, refused

PLUGIN = """
from pathlib import Path
from fedpbc import register_algorithm
from fedpbc.algorithms import FedAvg

Path({mark!r}).write_text("ran")

class Mine(FedAvg):
    name = "mine"

register_algorithm(Mine)
"""


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A stopped run and a comparison with a plugin, from somebody else."""
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "sender"))
    mark = tmp_path / "mark"
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.format(mark=str(mark)))
    options = [*DIGITS, "--rounds", 2, "--plugin", plugin]
    ran("run", *options, "--algorithm", "mine", "--out", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    ran("compare", *options, "--algorithms", "mine", "--seeds", 0, "--out", tmp_path / "compared")
    mark.unlink()
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "receiver"))
    return tmp_path


def test_a_search_that_was_sent_needs_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "sender"))
    mark = tmp_path / "mark"
    Path("mine.py").write_text(PLUGIN.format(mark=str(mark)))
    options = ("--plugin", "mine.py", "--algorithms", "mine", "--candidates", 1, "--jobs", 1)
    ran("tune", *DIGITS, "--rounds", 2, *options, "--out", "searched")
    Path("searched/tuning.json").unlink()
    mark.unlink()
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "receiver"))
    before = content(tmp_path)
    for arguments in (
        ("resume", "searched"),
        ("run", "searched/tuned-mine.toml", "--out", "new"),
        ("tune", "searched/tuned.toml", "--out", "new"),
        ("advise", "searched/tuned.toml", "--out", "new"),
        ("links", "searched/tuned.toml"),
    ):
        line = refused(fedpbc(*arguments))
        assert "has a plugin that you have not run on this machine" in line
    assert content(tmp_path) == before
    assert fedpbc("resume", "searched", "--jobs", 1, "--trust").code == 0
    assert mark.read_text() == "ran"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("resume", "run"),
        ("theory", "run"),
        ("theory", "run/config.toml"),
        ("run", "run/config.toml", "--out", "new"),
        ("resume", "compared"),
        ("compare", "compared/compare.toml", "--out", "new"),
    ],
    ids=" ".join,
)
def test_a_plugin_that_was_sent_needs_trust(sent, monkeypatch, arguments):
    monkeypatch.chdir(sent)
    before = content(sent)
    line = refused(fedpbc(*arguments))
    assert "has a plugin that you have not run on this machine" in line
    assert "plugin-0.py, and pass --trust" in line
    assert content(sent) == before
    assert not (sent / "mark").exists()
    assert fedpbc(*arguments, "--trust").code == 0
    assert (sent / "mark").read_text() == "ran"
    # It is remembered.
    shutil.rmtree(sent / "new", ignore_errors=True)
    assert fedpbc(*arguments).code == 0


@pytest.mark.parametrize(
    "arguments", [("report", "run"), ("verify", "run"), ("verify", "compared")]
)
def test_looking_at_a_folder_runs_nothing(sent, monkeypatch, arguments):
    monkeypatch.chdir(sent)
    fedpbc(*arguments)
    assert not (sent / "mark").exists()


def test_from_python_it_needs_trust_too(sent):
    with pytest.raises(InputError, match="trust=True in Python"):
        resume_run(sent / "run")
    resume_run(sent / "run", trust=True)


def test_a_changed_plugin_is_not_the_one_that_was_trusted(sent, monkeypatch):
    monkeypatch.chdir(sent)
    ran("run", *DIGITS, "--rounds", 1, "--plugin", "mine.py", "--out", "other")
    with (sent / "run" / "inputs" / "plugin-0.py").open("a") as file:
        file.write("# more\n")
    assert "not run on this machine" in refused(fedpbc("resume", "run"))


def test_without_a_home_the_own_plugin_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "_remembered", set())
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.format(mark=str(tmp_path / "mark")))
    ran("run", *DIGITS, "--rounds", 1, "--plugin", plugin, "--out", tmp_path / "run")


@pytest.fixture
def stopped(tmp_path):
    run = tmp_path / "run"
    ran("run", *DIGITS, "--rounds", 3, "--reported", "disk", "--out", run)
    (run / "summary.json").unlink()
    return run


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "resume") for name in (".lock", "reports.bin", "metrics.jsonl", "failure.txt")),
        *((name, "run --overwrite") for name in (".lock", "reports.bin", "config.toml", "inputs")),
        *(("metrics.jsonl", command) for command in ("verify", "report")),
    ],
)
def test_a_link_in_a_folder_does_not_change_its_target(stopped, name, command):
    outside = stopped.parent / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(outside if name == "inputs" else outside / "mine")
    arguments = {"run --overwrite": ["run", *DIGITS, "--rounds", 2, "--overwrite", "--out"]}
    fedpbc(*arguments.get(command, [command]), stopped)
    assert content(outside) == {"mine": b"mine"}


@pytest.mark.parametrize("files", [(), ("ready", "metrics.jsonl"), ("config.toml", "moving")])
def test_a_run_does_not_begin_in_another_folder(stopped, files):
    """The new run begins in .next, which is removed when it takes its place."""
    outside = stopped.parent / "outside"
    outside.mkdir()
    for name in files:
        (outside / name).write_text("mine")
    (stopped / ".next").symlink_to(outside)
    before = content(stopped)
    overwritten = ["run", *DIGITS, "--rounds", 2, "--overwrite", "--out", stopped]
    assert ".next is a link: a run's folder has none" in refused(fedpbc(*overwritten))
    assert content(outside) == dict.fromkeys(files, b"mine")
    assert content(stopped) == before
    (stopped / ".next").unlink()
    outside.rename(stopped / ".next")
    if files:
        assert ".next holds other files" in refused(fedpbc(*overwritten))
        assert content(stopped / ".next") == dict.fromkeys(files, b"mine")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command",
    [
        ["compare", *DIGITS, "--algorithms", "fedavg", "--seeds", "0", "--rounds", 2],
        ["tune", *DIGITS, "--algorithms", "fedavg", "--rounds", 4, "--candidates", 2],
    ],
    ids=lambda command: command[0],
)
def test_no_trial_round_in_another_folder(tmp_path, command):
    ran(*command, "--out", tmp_path / "results")
    (tmp_path / "outside").mkdir()
    (tmp_path / "results/.next").symlink_to(tmp_path / "outside")
    before = content(tmp_path)
    line = refused(fedpbc(*command, "--overwrite", "--out", tmp_path / "results"))
    assert ".next is a link" in line
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (".lock", "resume"),
        ("metrics.jsonl", "resume"),
        ("config.toml", "report"),
        ("summary.json", "verify"),
    ],
)
@pytest.mark.timeout(60)
def test_a_pipe_in_a_folder_does_not_block(stopped, name, command):
    (stopped / name).unlink(missing_ok=True)
    os.mkfifo(stopped / name)
    assert fedpbc(command, stopped).code in (0, 2)


@pytest.mark.parametrize("manifest", ["as it was", "resealed", "removed"])
def test_a_plan_with_names_that_lead_elsewhere_removes_nothing(tmp_path, monkeypatch, manifest):
    monkeypatch.chdir(tmp_path)
    options = ["--algorithms", "fedavg", "--seeds", "0", "--rounds", "2", *DIGITS]
    ran("compare", *options, "--out", "compared")
    ran("run", *DIGITS, "--rounds", 2, "--out", "mine/seed-0")
    plan = Path("compared/compare.toml")
    plan.write_text(plan.read_text() + '\n[algorithms."../mine"]\n')
    sealed = json.loads(Path("compared", MANIFEST).read_text())
    if manifest == "resealed":
        sealed["checksums"]["compare.toml"] = sha256(plan.read_bytes()).hexdigest()
        sealed["files"] += [
            "../mine/seed-0/metrics.jsonl",
            str(tmp_path / "mine/seed-0/config.toml"),
        ]
        Path("compared", MANIFEST).write_text(json.dumps(sealed))
    elif manifest == "removed":
        Path("compared", MANIFEST).unlink()
    before = content(Path("mine"))
    for arguments in (
        ["resume", "compared"],
        ["compare", *options, "--out", "compared", "--overwrite"],
    ):
        fedpbc(*arguments)
        assert content(Path("mine")) == before
