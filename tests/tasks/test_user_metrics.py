"""Metrics of one's own are evaluated with the rest, whatever the engine."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from fedpbc import InputError, Supervised, simulate

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def recall_of_2(outputs, labels):
    hits = (outputs.argmax(1) == 2) & (labels == 2)
    return hits.sum() / (labels == 2).sum()


def make_task(metrics):
    torch.manual_seed(0)
    # Five clients with more samples than a batch has, so that they can be stacked.
    return Supervised(nn.Linear(4, 3), (X, Y), (X[:30], Y[:30]), clients=5, metrics=metrics)


def test_a_metric_sees_all_test_samples():
    task = make_task({"samples": lambda outputs, labels: len(labels), "recall": recall_of_2})
    found = task.evaluate(task.init())
    assert found.extra["samples"] == 30
    assert found.extra["recall"] == pytest.approx(found.per_class[2])
    assert found.as_dict()["recall"] == found.extra["recall"]


@pytest.mark.parametrize("engine", ["serial", "stacked", "pool"])
def test_every_engine_has_them(engine):
    task = make_task({"recall": recall_of_2})
    result = simulate(task, "fedpbc", "markov", rounds=4, evaluate_every=2, engine=engine)
    for metrics in result.metrics:
        for evaluation in metrics.views.values():
            assert evaluation.extra["recall"] == pytest.approx(evaluation.per_class[2])


def test_a_resumed_run_has_them_in_every_line(tmp_path):
    def stop(done, metrics):
        if done == 5:
            raise KeyboardInterrupt

    options = {"rounds": 10, "evaluate_every": 2, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        simulate(make_task({"recall": recall_of_2}), "fedavg", "markov", on_round=stop, **options)
    simulate(make_task({"recall": recall_of_2}), "fedavg", "markov", **options)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert all("recall" in json.loads(line)["views"]["server"] for line in lines)


def test_what_is_not_finite_is_missing():
    task = make_task({"ratio": lambda outputs, labels: math.nan})
    assert task.evaluate(task.init()).extra == {"ratio": None}


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ([recall_of_2], "metrics is .* but should be a table of functions"),
        ({"f 1": recall_of_2}, "the name of a metric is 'f 1', but should be letters"),
        ({"test_loss": recall_of_2}, "but should be another: an evaluation has this one"),
        ({"f1": 0.5}, r"metrics\['f1'\] is 0.5, but should be a function of outputs and labels"),
        ({"f1": lambda outputs: 0}, r"metrics\['f1'\] failed: TypeError: .*should return a numb"),
        ({"f1": lambda outputs, labels: outputs}, r"metrics\['f1'\] failed: "),
    ],
)
def test_wrong_metrics_are_one_line(metrics, line):
    with pytest.raises(InputError, match=line):
        make_task(metrics)
