"""Metrics and summaries from anyone: what a run could not have written is refused in one line."""

from __future__ import annotations

import copy
import json

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Spread, mean_of
from fedpbc.experiments.result_schema import check_metrics, check_summary
from tests.commandline import fedpbc, ran, refused
from tests.synthetic_runs import config, metrics, write_run

NOT_A_NUMBER = ["1", [], {}, True, 10**400, float("inf")]


def test_what_a_run_writes_passes(tmp_path):
    run = write_run(tmp_path / "run")
    check_summary(json.loads((run / "summary.json").read_text()))
    for classes in (True, False):
        lines = metrics("fedpbc", 0, 40, 10, classes, 40)
        check_metrics(lines, config("fedpbc", 0, 40, 10))


@pytest.mark.parametrize("value", NOT_A_NUMBER)
@pytest.mark.parametrize("key", ["seconds", "consensus_error"])
def test_a_line_of_numbers(key, value):
    lines = metrics("fedpbc", 0, 40, 10, True, 40)
    with pytest.raises(InputError, match=rf"^{key} in metrics.jsonl line 2"):
        check_metrics([lines[0], {**lines[1], key: value}], config("fedpbc", 0, 40, 10))


@pytest.mark.parametrize(
    ("view", "evaluation"),
    [
        ("x[/b]\x1b", {"test_loss": 1.0}),
        ("server", {}),
        ("server", []),
        ("server", {"test_loss": "1"}),
        ("server", {"test_loss": 1.0, "test_accuracy": [1.0]}),
        ("server", {"test_loss": 1.0, "per_class": 3}),
        ("server", {"test_loss": 1.0, "per_class": ["1"]}),
        ("server", {"test_loss": 1.0, "distance": "far"}),
        ("mean", {"test_loss": 1.0}),
    ],
)
def test_views(view, evaluation):
    [line, *_] = metrics("fedavg", 0, 40, 10, True, 40)
    line["views"] = {view: evaluation}
    with pytest.raises(InputError) as caught:
        check_metrics([line], config("fedavg", 0, 40, 10, views=["server"]))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("key", "value"), [("rounds", "40"), ("evaluate_every", 0), ("rounds", -1)]
)
def test_a_configuration_that_counts_nothing(key, value):
    with pytest.raises(InputError, match=key):
        check_metrics([], {**config("fedavg", 0, 40, 10), key: value})


DAMAGE = {
    "no object": lambda s: [s],
    "no algorithm": lambda s: {**s, "algorithm": None},
    "rounds": lambda s: {**s, "rounds": 10**30},
    "clients": lambda s: {**s, "clients": "8"},
    "views": lambda s: {**s, "views": {"server": {"test_loss": None}}},
    "cost": lambda s: {**s, "cost": [1]},
    "bytes": lambda s: {**s, "cost": {**s["cost"], "bytes_up": -1}},
    "models": lambda s: {**s, "cost": {**s["cost"], "models_on_server": {"server": "1"}}},
    "memory": lambda s: {**s, "memory": {"process": "much"}},
    "a key": lambda s: {k: v for k, v in s.items() if k != "seconds"},
    "aided": lambda s: {**s, "cost": {**s["cost"], "memory_aided": 1}},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_summary_takes_down_only_its_own_run(tmp_path, damage):
    write_run(tmp_path / "runs" / "good", "fedpbc")
    bad = write_run(tmp_path / "runs" / "bad")
    summary = json.loads((bad / "summary.json").read_text())
    (bad / "summary.json").write_text(json.dumps(DAMAGE[damage](copy.deepcopy(summary))))
    assert "1 damaged, 1 finished" in ran("report", tmp_path / "runs").out
    assert "summary.json" in refused(fedpbc("report", bad))


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[" * 100_000, b"", b'{"views": 1', b"1" * 5000, b'"\\ud800"']
)
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "config.toml"])
def test_any_bytes_in_a_file_take_down_only_its_own_run(tmp_path, name, content):
    write_run(tmp_path / "runs" / "good", "fedpbc")
    bad = write_run(tmp_path / "runs" / "bad")
    (bad / name).write_bytes(content)
    assert "1 damaged, 1 finished" in ran("report", tmp_path / "runs").out


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324])
def test_numbers_at_the_edge_of_floats_are_shown(tmp_path, value):
    for seed in (0, 1):
        run = write_run(tmp_path / "runs" / f"seed-{seed}", "fedavg", seed, classes=False)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["consensus_error"] = line["seconds"] = value
            for evaluation in line["views"].values():
                evaluation["test_loss"] = evaluation["distance"] = value
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / "metrics.jsonl").write_text(text)
    assert "2 finished" in ran("report", tmp_path / "runs").out


def test_means_and_deviations_do_not_overflow():
    assert mean_of([1.7e308, 1.7e308]) == pytest.approx(1.7e308)
    assert Spread.of([1.7e308, 1.7e308]).deviation == 0
    assert Spread.of([1.7e308, -1.7e308]).deviation == pytest.approx(1.797e308, rel=1e-3)
    assert Spread.of([0.5, 0.7]).deviation == pytest.approx(0.1414, rel=1e-3)
