"""How well a run's models serve each client: measured by hand, and in a run's summary."""

from __future__ import annotations

import json

import pytest
import torch

from fedpbc.errors import InputError
from fedpbc.experiments.client_accuracy import LISTED_CLIENTS, client_summary, worst_tenth
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.result_schema import check_summary
from fedpbc.experiments.start import start_run
from fedpbc.simulation.views import VIEWS
from fedpbc.tasks import Supervised
from tests import small_runs as small


def supervised(**options) -> Supervised:
    return Supervised(small.mlp(), small.samples(), small.samples(), clients=7, **options)


def right(task, model: torch.Tensor, samples: torch.Tensor) -> float:
    task.layout.fill(list(task.module.parameters()), model)
    with torch.no_grad():
        guesses = task.module(task.data.inputs[samples]).argmax(dim=1)
    return float((guesses == task.data.labels[samples]).double().mean())


def test_each_client_is_served_by_its_own_samples():
    task = supervised()
    model = task.init()
    expected = [right(task, model, torch.as_tensor(part)) for part in task.parts]
    assert task.client_accuracies(model) == pytest.approx(expected)
    assert [task.client_accuracy(i, model) for i in range(7)] == pytest.approx(expected)


def test_a_client_without_evaluated_samples_has_no_accuracy():
    task = supervised(train_samples=2)
    accuracies = task.client_accuracies(task.init())
    assert sum(value is not None for value in accuracies) in {1, 2}
    assert [task.client_accuracy(i, task.init()) is None for i in range(7)] == [
        value is None for value in accuracies
    ]


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
    # All samples are evaluated, and clients have as many each.
    train = summary["views"]["server"]["train_accuracy"]
    assert summary["train_samples"]["evaluated"] == summary["train_samples"]["all"]
    assert served["server"]["mean"] == pytest.approx(train)
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
