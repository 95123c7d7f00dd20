"""A task on generated samples: as if all of them were in memory, on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpbc.data.synthetic import SyntheticClients
from fedpbc.engines import PoolEngine, SerialEngine, StackedEngine
from fedpbc.errors import InputError
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.generated_data import EVALUATED_CLIENTS, TEST_SAMPLES
from tests import small_runs as small

GENERATOR = SyntheticClients(samples=20, features=6, classes=4)
TRAINING = LocalTraining(local_steps=3, batch_size=8, learning_rate=0.1)
ENGINES = pytest.mark.parametrize("engine", [SerialEngine, StackedEngine], ids=lambda e: e.name)


def generated(clients=small.CLIENTS, **options):
    return Supervised(small.mlp(), GENERATOR, None, clients=clients, training=TRAINING, **options)


def in_memory(clients=small.CLIENTS):
    """The same samples, all of them held in memory, each client's by an explicit partition."""
    parts = [GENERATOR.train(0, client) for client in range(clients)]
    train = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    partition = np.arange(20 * clients).reshape(clients, 20)
    return Supervised(small.mlp(), train, train, partition=partition, training=TRAINING)


@ENGINES
@pytest.mark.parametrize("name", ["fedavg", "fedpbc", "scaffold"])
def test_training_has_the_bits_of_the_same_samples_in_memory(engine, name):
    up = small.random_table()
    views = [small.views(task, name, up, engine=engine) for task in (generated(), in_memory())]
    assert small.same_bits(*views)


@pytest.mark.slow
def test_workers_generate_the_same_samples():
    up = small.random_table()
    wanted = small.views(generated(), "fedpbc", up)
    made = small.simulation(
        generated(), "fedpbc", up, engine=lambda task: PoolEngine(task, workers=2)
    )
    list(made.run())
    assert small.same_bits(made.view_models(), wanted)
    made.close()


@ENGINES
def test_a_resumed_run_generates_the_same_samples(engine):
    up = small.random_table()
    wanted = small.views(generated(), "fedpbc", up, engine=engine)
    first = small.simulation(generated(), "fedpbc", up, engine=engine)
    for _, _ in zip(range(9), first.steps(), strict=False):
        continue
    again = small.simulation(generated(), "fedpbc", up, engine=engine)
    again.restore(first.state())
    list(again.run())
    assert small.same_bits(again.view_models(), wanted)


def test_a_full_cache_changes_nothing(monkeypatch):
    up = small.random_table()
    wanted = small.views(generated(), "fedpbc", up, engine=StackedEngine)
    monkeypatch.setattr("fedpbc.tasks.generated_data.CACHED_BYTES", 1000)
    monkeypatch.setattr("fedpbc.data.batches.CACHED_BYTES", 1000)
    assert small.same_bits(small.views(generated(), "fedpbc", up, engine=StackedEngine), wanted)


def test_evaluations_use_some_clients_spread_over_all():
    task = generated(clients=1000, train_samples=300)
    assert len(task.data.evaluated) == 300
    assert task.test_description()["samples"] == EVALUATED_CLIENTS * TEST_SAMPLES
    accuracies = task.client_accuracies(task.init())
    tested = [client for client, value in enumerate(accuracies) if value is not None]
    assert (len(accuracies), len(tested), tested[0], tested[-1]) == (1000, 100, 0, 999)
    own = [task.client_accuracy(client, task.init()) for client in tested]
    assert own == [accuracies[client] for client in tested]
    assert task.client_accuracy(1, task.init()) is None
    evaluation = task.evaluate(task.init())
    assert evaluation.test_accuracy == pytest.approx(np.mean(own))


def test_a_client_s_samples_can_be_asked_for():
    task = generated(clients=30)
    inputs, labels = task.data.samples_of(29)
    x, y = GENERATOR.train(0, 29)
    assert torch.equal(inputs, torch.from_numpy(x))
    assert labels.tolist() == y.tolist()
    assert task.client_loss(29, task.init()) == in_memory(30).client_loss(29, task.init())
    assert task.client_fingerprint(29) == in_memory(30).client_fingerprint(29)
    assert task.class_shares is None
    assert task.samples.tolist() == [20] * 30


def test_validation_holds_out_each_client_s_last_samples():
    task = generated(validation=0.25)
    x, y = GENERATOR.train(0, 2)
    inputs, _ = task.data.samples_of(2)
    assert torch.equal(inputs, torch.from_numpy(x[:15]))
    assert task.data.test_labels[10:15].tolist() == y[15:].tolist()
    assert task.data.batches.sizes.tolist() == [15] * small.CLIENTS
    assert task.samples.tolist() == [20] * small.CLIENTS
    with pytest.raises(InputError, match=r"validation is 0\.01"):
        generated(validation=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": [[0]]}, "partition is given, but train generates"),
        ({"normalise": ([0.0], [1.0])}, "normalise is given, but train generates"),
        ({"flip": True}, "crop_padding and flip are for images"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        generated(**options)


def test_test_samples_are_generated_too():
    with pytest.raises(InputError, match="train generates test samples"):
        Supervised(small.mlp(), GENERATOR, small.samples())
