"""How well a run's models serve each client: measured by hand, and in a run's summary."""

from __future__ import annotations

import json
from statistics import fmean

import pytest
import torch

from fedpbc.errors import InputError
from fedpbc.experiments.client_accuracy import LISTED_CLIENTS, client_summary, worst_tenth
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.result_schema import check_summary
from fedpbc.experiments.start import start_run
from fedpbc.simulation.views import VIEWS
from fedpbc.tasks import Supervised, model_evaluator
from tests import small_runs as small


def supervised(**options) -> Supervised:
    return Supervised(small.mlp(), small.samples(), small.samples(), clients=7, **options)


def right(task, model: torch.Tensor, label: int) -> float:
    """The accuracy on the test samples of one class."""
    task.layout.fill(list(task.module.parameters()), model)
    chosen = task.data.test_labels == label
    with torch.no_grad():
        guesses = task.module(task.data.test_inputs[chosen]).argmax(dim=1)
    return float((guesses == label).double().mean())


def test_each_client_is_served_by_test_samples_of_its_classes():
    task = supervised()
    model = task.init()
    expected = []
    for part in task.parts:
        labels = task.data.labels[torch.as_tensor(part)]
        expected.append(fmean(right(task, model, int(label)) for label in labels))
    assert task.client_accuracies(model) == pytest.approx(expected)
    assert [task.client_accuracy(i, model) for i in range(7)] == pytest.approx(expected)


def one_class_each(test: torch.Tensor) -> Supervised:
    """Three clients with a class each, and a module that always says 0."""
    train = torch.zeros(30, 2), torch.arange(30) // 10
    module = torch.nn.Linear(2, 3)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    partition = [list(range(10 * k, 10 * k + 10)) for k in range(3)]
    return Supervised(module, train, (torch.zeros(len(test), 2), test), partition=partition)


def test_a_class_without_test_samples_does_not_count():
    task = one_class_each(torch.tensor([0, 0, 1]))
    assert task.client_accuracies(task.init()) == [1.0, 0.0, None]
    assert [task.client_accuracy(k, task.init()) for k in range(3)] == [1.0, 0.0, None]


def test_of_many_test_samples_a_clients_own_model_sees_some():
    # Of 4,000 test samples of its class every fourth is used, from the first to the last.
    task = one_class_each(torch.cat([torch.zeros(4000), torch.ones(4000)]).long())
    model = task.init()
    assert [task.client_accuracy(k, model) for k in range(3)] == [1.0, 0.0, None]


def test_of_a_great_many_clients_some_are_judged(monkeypatch):
    monkeypatch.setattr(model_evaluator, "EVALUATED_CLIENTS", 3)
    task = supervised()
    judged = [task.client_accuracy(i, task.init()) is not None for i in range(7)]
    assert judged == [True, False, False, True, False, False, True]
    assert None not in task.client_accuracies(task.init())


def test_many_clients_share_the_samples(monkeypatch):
    monkeypatch.setattr(model_evaluator, "ALL_CLIENTS_SAMPLES", 7 * 10)
    seen = []
    score = model_evaluator.ModelEvaluator._hits
    monkeypatch.setattr(
        model_evaluator.ModelEvaluator,
        "_hits",
        lambda self, model, samples: seen.append(len(samples)) or score(self, model, samples),
    )
    task = supervised()
    for client in range(7):
        task.client_accuracy(client, task.init())
    # Ten of each, and at most one more of each of four classes.
    assert all(10 <= count <= 14 for count in seen)


def test_without_a_class_of_each_sample_all_test_samples_are_alike():
    samples = torch.zeros(8, 2), torch.tensor([[0, 1]] * 3 + [[0, 0]] * 5)
    module = torch.nn.Linear(2, 6)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    module = torch.nn.Sequential(module, torch.nn.Unflatten(1, (3, 2)))
    task = Supervised(module, samples, samples, clients=2)
    # It says 0 twice: right about half of three samples, and about all of five.
    assert task.client_accuracies(task.init()) == pytest.approx([6.5 / 8] * 2)
    assert task.client_accuracy(1, task.init()) == pytest.approx(6.5 / 8)


def test_a_task_without_classes_cannot_tell():
    simulation, _ = small.finished(small.quadratic(), "fedpbc", small.random_table())
    assert simulation.client_accuracies() == {}


def test_a_run_records_every_view_and_the_clients_own_models(tmp_path):
    options = {"data": "digits", "clients": 10, "rounds": 3, "algorithm": "fedpbc"}
    summary = start_run(Config.from_dict(options), tmp_path / "run")
    served = summary["client_accuracy"]
    assert set(served) == {*VIEWS, "own"}
    for view, clients in served.items():
        assert clients["clients"] == len(clients["accuracies"]) == 10
        assert clients["worst_tenth"] == pytest.approx(min(clients["accuracies"]), abs=1e-5)
        assert clients["worst_tenth"] <= clients["mean"], view
    assert summary["train_samples"]["evaluated"] == summary["train_samples"]["all"]
    check_summary(json.loads((tmp_path / "run" / "summary.json").read_text()))


def test_statistics_are_of_all_clients_and_the_list_is_bounded():
    served = client_summary({"server": [k / 2000 for k in range(2000)]})["server"]
    assert len(served["accuracies"]) == LISTED_CLIENTS
    assert served["clients"] == 2000
    assert served["mean"] == pytest.approx(0.49975)
    assert served["worst_tenth"] == pytest.approx(sum(range(200)) / 200 / 2000)
    assert worst_tenth([0.3, 0.1]) == 0.1


@pytest.mark.parametrize(
    "served",
    [
        [],
        {"server": []},
        {"server": {"mean": 0.5, "worst_tenth": 0.1, "deviation": 0.1}},
        {"server": {"mean": 0.5, "worst_tenth": 0.1, "deviation": 0.1, "accuracies": [2]}},
        {"server": {"mean": "a", "worst_tenth": 0.1, "deviation": 0.1, "accuracies": []}},
        {"nobody": {"mean": 0.5, "worst_tenth": 0.1, "deviation": 0.1, "accuracies": []}},
    ],
)
def test_a_summary_with_wrong_accuracies_is_refused(tmp_path, served):
    options = {"data": "digits", "clients": 5, "rounds": 1}
    summary = start_run(Config.from_dict(options), tmp_path / "run")
    with pytest.raises(InputError, match="client_accuracy"):
        check_summary({**summary, "client_accuracy": served})
    with pytest.raises(InputError, match="train_samples"):
        check_summary({**summary, "train_samples": {"evaluated": -1}})
