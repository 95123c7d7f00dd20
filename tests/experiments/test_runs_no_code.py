"""A pickle in place of any file that is read as data runs nothing."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpbc import Config, InputError, load_view, start_run
from fedpbc.experiments.execution import StoppedError, Watcher
from tests.commandline import DIGITS, fedpbc, refused, write_check


class Code:
    """What makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def write_pickle(path: Path, kind: str) -> None:
    if kind == "array":
        np.save(path, np.array([[Code()]], dtype=object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(Code()))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pickles_would_run(place):
    for kind in ("array", "plain"):
        write_pickle(Path("bad.npy"), kind)
        np.load("bad.npy", allow_pickle=True) if kind == "array" else pickle.loads(
            Path("bad.npy").read_bytes()
        )
        Path("ran").rmdir()


@pytest.mark.parametrize("kind", ["array", "plain"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "check.toml", "--set", "task.targets=bad.npy", "--out", "new"),
        ("run", "check.toml", "--set", "links.file=bad.npy", "--out", "new"),
        ("run", *DIGITS, "--set", "links.p=bad.npy", "--out", "new"),
        ("run", *DIGITS, "--set", 'downlink={name="bernoulli",p="bad.npy"}', "--out", "new"),
        ("theory", "--p", "bad.npy"),
        ("theory", "--table", "bad.npy"),
        ("theory", "--p", "0.5", "--targets", "bad.npy"),
        ("links", "--trace", "bad.csv"),
        ("run", "bad.toml"),
    ],
    ids=lambda arguments: arguments[-1] if arguments[-1] != "new" else arguments[-3],
)
def test_a_file_that_is_named(place, arguments, kind):
    write_check(place)
    for name in ("bad.npy", "bad.csv", "bad.toml"):
        write_pickle(Path(name), "plain")
    write_pickle(Path("bad.npy"), kind)
    refused(fedpbc(*arguments))
    assert not Path("ran").exists()
    assert not Path("new").exists()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with checkpoints and reports on disk that was stopped after three rounds."""
    run = tmp_path_factory.mktemp("stopped") / "run"

    def stop(done: int, metrics: object) -> None:
        if done == 3:
            raise StoppedError("enough")

    values = {"data": "digits", "clients": 4, "rounds": 5, "checkpoint_every": 1}
    config = Config.from_dict({**values, "reported": "disk"})
    with pytest.raises(StoppedError):
        start_run(config, run, watcher=Watcher(on_round=stop))
    assert {"reports.bin", "checkpoint-0000003.safetensors"} <= {f.name for f in run.iterdir()}
    return run


FILES = (
    "checkpoint-0000003.safetensors",
    "final.safetensors",
    "fleet.safetensors",
    "reports.bin",
    "metrics.jsonl",
    "summary.json",
    "fedpbc-manifest.json",
    "tracking.json",
    "config.toml",
)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_run(stopped, place, name):
    shutil.copytree(stopped, "run")
    write_pickle(Path("run", name), "plain")
    for arguments in (("verify", "run"), ("report", "run"), ("links", "run"), ("resume", "run")):
        assert fedpbc(*arguments).code in (0, 2)
        assert not Path("ran").exists()


def test_a_final_model(place):
    Path("run").mkdir()
    write_pickle(Path("run/final.safetensors"), "plain")
    with pytest.raises(InputError, match="cannot be read"):
        load_view("run", "server")
    assert not Path("ran").exists()
