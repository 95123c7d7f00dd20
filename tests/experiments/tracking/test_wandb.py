"""Weights & Biases, by a stand-in; and itself, offline, where it is installed."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpbc import Config, DivergedError, MissingExtraError, resume_run, start_run
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.tracking import wandb as own
from fedpbc.experiments.tracking.tracker import values_of
from tests.commandline import DIGITS, fedpbc, metrics, ran, refused
from tests.small_runs import compared
from tests.stand_ins import Wandb

TRACKED = (*DIGITS, "--rounds", 8, "--evaluate-every", 2, "--track", "wandb")
GIVEN = {"data": "digits", "clients": 8, "rounds": 8, "evaluate_every": 2, "track": ["wandb"]}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """As it is where nobody has set anything; and so it is afterwards."""
    for name in [*os.environ, "WANDB_ERROR_REPORTING"]:
        if name.startswith("WANDB_"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)


@pytest.fixture
def wandb(monkeypatch):
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def stop_after(rounds):
    def on_round(done, _):
        if done == rounds:
            raise KeyboardInterrupt

    return Watcher(on_round=on_round)


def test_the_run_and_its_numbers_are_there(wandb, tmp_path):
    ran("run", *TRACKED, "--out", tmp_path / "run")
    [run] = wandb.runs
    assert run.given["project"] == "fedpbc"
    assert run.given["name"] == "run"
    assert run.given["group"] is None
    assert run.given["dir"] == str(tmp_path.resolve())
    assert run.given["reinit"] == "create_new"
    assert run.given["tags"] == ["fedpbc", "bernoulli_varying", "digits"]
    assert run.given["config"]["train.local_steps"] == 5
    assert run.history == [
        {"_step": line["round"], "round": line["round"], **values_of(line)}
        for line in metrics(tmp_path / "run")
    ]
    assert run.exit_code == 0
    assert run.summary == {"state": "finished"}


def test_what_the_user_has_set_outranks(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "there"))
    monkeypatch.setenv("WANDB_DISABLE_GIT", "false")
    ran("run", *TRACKED, "--out", tmp_path / "run")
    [run] = wandb.runs
    assert run.given["project"] == "mine"
    assert run.given["dir"] == str(tmp_path / "there")
    settings = vars(run.given["settings"])
    assert settings["console"] == "off"
    assert settings["disable_code"] is True
    assert settings["x_disable_machine_info"] is True
    assert "disable_git" not in settings
    assert "finish_timeout" not in settings  # This stand-in is of an older version.


def test_its_error_reports_are_off(monkeypatch):
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingExtraError):
        own.check()
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_who_is_not_logged_in_is_told_at_once(wandb, tmp_path, monkeypatch):
    wandb.logged_in = False
    line = refused(fedpbc("run", *TRACKED, "--out", tmp_path / "run"))
    assert line == "wandb is not logged in: 'wandb login', or set WANDB_MODE=offline"
    monkeypatch.setenv("WANDB_MODE", "ofline")
    line = refused(fedpbc("run", *TRACKED, "--out", tmp_path / "run"))
    assert line == "WANDB_MODE is 'ofline', but should be online, offline or disabled"
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WANDB_MODE", "offline")
    ran("run", *TRACKED, "--out", tmp_path / "run")


def test_a_run_that_goes_on_is_the_same_run(wandb, tmp_path):
    config = Config.from_dict({**GIVEN, "checkpoint_every": 3})
    with pytest.raises(KeyboardInterrupt):
        start_run(config, tmp_path / "run", watcher=stop_after(7))
    resume_run(tmp_path / "run")
    first, second = wandb.runs
    assert first.given["id"] == second.given["id"]
    assert second.given["resume"] == "allow"
    assert [line["_step"] for line in first.history] == [2, 4, 6]
    assert [line["_step"] for line in second.history] == [8]
    assert (first.exit_code, second.exit_code) == (130, 0)


def test_offline_a_run_that_goes_on_is_written_anew(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(KeyboardInterrupt):
        start_run(Config.from_dict(GIVEN), tmp_path / "run", watcher=stop_after(5))
    resume_run(tmp_path / "run")
    first, second = wandb.runs
    assert first.given["id"] == second.given["id"]
    assert second.given["resume"] is None
    assert [line["_step"] for line in second.history] == [2, 4, 6, 8]


def test_a_failed_run_has_failed(wandb, tmp_path):
    wild = {**GIVEN, "train": {"learning_rate": 1e30}, "links": "always"}
    with pytest.raises(DivergedError):
        start_run(Config.from_dict(wild), tmp_path / "run")
    assert wandb.runs[0].exit_code == 1
    assert wandb.runs[0].summary == {"state": "failed"}


def test_a_comparison_is_a_group(wandb, tmp_path):
    compared(tmp_path / "cmp", "fedavg,fedpbc", track=["wandb"])
    assert {run.given["name"] for run in wandb.runs} == {"fedavg/seed-1", "fedpbc/seed-1"}
    assert {run.given["group"] for run in wandb.runs} == {"cmp"}
    assert {run.given["dir"] for run in wandb.runs} == {str(tmp_path.resolve())}


@pytest.mark.filterwarnings("default")
def test_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra: pip install 'fedpbc[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "runs" / "a"
    ended = fedpbc("run", *TRACKED, "--out", run)
    assert (ended.code, ended.err) == (0, "")
    kept = json.loads((run / "tracking.json").read_text())["trackers"]["wandb"]
    assert kept["state"] == "finished"
    [file] = (tmp_path / "runs" / "wandb").glob(f"offline-run-*-{kept['id']}/*.wandb")
    found = [Record.FromString(content) for content in records(file)]
    [begun] = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert (begun.display_name, begun.project) == ("a", "fedpbc")
    assert not begun.git.remote_url
    [ended] = [record.exit for record in found if record.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 0
    history = [
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]
    for line, logged in zip(metrics(run), history, strict=True):
        expected = {"round": line["round"], "_step": line["round"], **values_of(line)}
        assert {key: logged[key] for key in expected} == expected


def records(file: Path) -> Iterator[bytes]:
    """Those of a .wandb file: LevelDB's log, in blocks of 32 KiB, behind a header of 7 bytes."""
    content, at, whole = file.read_bytes(), 7, b""
    while at < len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # Whole, or the last part of one.
            yield whole
            whole = b""
