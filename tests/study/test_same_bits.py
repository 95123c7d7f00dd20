"""The new path computes what the old one does, to the bit. It goes when the old one does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpbc import Config, start_run
from fedpbc.study.execute import execute
from fedpbc.study.study import Run

pytestmark = pytest.mark.slow

SMALL = {"data": "digits", "clients": 12, "rounds": 20, "evaluate_every": 5}
CNN = {"data": "fashion", "model": "cnn_svhn", "clients": 6, "rounds": 4}
CASES: dict[str, tuple[dict, dict]] = {
    "fedpbc-serial": ({"engine": "serial"}, {}),
    "fedpbc-stacked": ({"links": "markov", "engine": "stacked"}, {}),
    "fedpbc-disk": ({"links": "bernoulli", "reported": "disk"}, {}),
    "fedavg_all": ({"algorithm": "fedavg_all", "links": "cyclic_reset"}, {}),
    "fedavg_known": ({"algorithm": "fedavg_known"}, {}),
    "fedau": ({"algorithm": {"name": "fedau", "cutoff": 3}}, {"algorithm": "fedau:cutoff=3"}),
    "f3ast": ({"algorithm": "f3ast", "links": "markov_varying", "model": "softmax"}, {}),
    "mifa": ({"algorithm": "mifa", "links": {"name": "table", "file": "table.csv"}}, {}),
    "fedawe": (
        {
            "algorithm": "fedawe",
            "links": {"name": "trace", "file": "trace.csv", "round_seconds": 60.0},
        },
        {},
    ),
    "fedvarp": ({"algorithm": "fedvarp", "links": "always", "train": {"local_steps": 3}}, {}),
    "scaffold": ({"algorithm": "scaffold", "links": {"name": "bernoulli", "p": 0.4}}, {}),
    "downlink": ({"downlink": {"name": "bernoulli", "p": 0.6}}, {}),
    "adam": ({"train": {"optimizer": "adam", "proximal": 0.1, "learning_rate": 0.01}}, {}),
    "momentum": (
        {"train": {"momentum": 0.8, "weight_decay": 0.01}},
        {"train": {"optimizer": "sgd:momentum=0.8:weight_decay=0.01"}},
    ),
    "schedule": (
        {"train": {"schedule": "cosine", "schedule_rounds": 20}},
        {"train": {"schedule": "cosine:rounds=20"}},
    ),
    "constant": ({"train": {"decay": False}}, {"train": {"schedule": "constant"}}),
    "torch": ({"train": {"optimizer": "RMSprop"}}, {}),
    "global": ({"train": {"global_learning_rate": 0.7}}, {}),
    "median": ({"aggregation": {"name": "median"}}, {}),
    "validation": ({"task": {"validation": 0.2}}, {}),
    "pool": ({**CNN, "engine": "pool", "workers": 2}, {"engine": "pool:workers=2"}),
    "convolutions": ({**CNN, "algorithm": "fedavg", "engine": "serial"}, {}),
    "quadratic": ({"task": {"targets": "targets.npy"}, "links": {"p": 0.5}, "rounds": 40}, {}),
    "shakespeare": ({"data": "shakespeare", "clients": 5, "rounds": 2}, {}),
    "synthetic": ({"data": "synthetic", "clients": 8}, {}),
}


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    random = np.random.default_rng(7)
    np.save(tmp_path / "targets.npy", random.normal(size=(9, 3)))
    np.savetxt(tmp_path / "table.csv", random.random((20, 12)) < 0.4, fmt="%d", delimiter=",")
    lines = [f"{i},{60 * i},{60 * i + 300}\n" for i in range(12)]
    (tmp_path / "trace.csv").write_text("client,online_from_s,online_until_s\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def timeless(line: dict) -> dict:
    return {key: value for key, value in line.items() if key != "seconds"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_metrics_and_final_models_are_those_of_before(case, inputs):
    given, tagged = CASES[case]
    base = {k: v for k, v in SMALL.items() if "task" not in given or k in ("evaluate_every",)}
    base = SMALL if given.get("task") == {"validation": 0.2} else base
    old, new = {**base, **given}, {**base, **given, **tagged}
    if "engine" in tagged:
        new.pop("workers")
    summary = start_run(Config.from_dict(old), inputs / "old")
    record = execute(Run.of(new), inputs / "new")
    before, now = (load_file(inputs / k / "final.safetensors") for k in ("old", "new"))
    assert before.keys() == now.keys()
    assert all(torch.equal(before[view], now[view]) for view in before)
    lines = [json.loads(x) for x in (inputs / "old" / "metrics.jsonl").read_text().splitlines()]
    assert list(map(timeless, record.metrics)) == list(map(timeless, lines))
    own = ("seconds", "memory", "checksums", "fingerprint", "id")
    assert {k: v for k, v in record.result.items() if k not in own} == {
        k: v for k, v in summary.items() if k not in own
    }
