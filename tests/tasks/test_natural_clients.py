"""Test samples that are clients' own: how they are weighed, each client's accuracy, perplexity."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc import LocalTraining, Supervised, simulate
from fedpbc.errors import InputError
from fedpbc.simulation.build import draw_timetable


class Constant(nn.Module):
    """Always the same logits: class 1 is the likeliest."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.0, 1.0, -1.0]))

    def forward(self, x):
        return self.logits.expand(len(x), 3)


X = np.zeros((6, 2), dtype=np.float32)
# Client 0 has four test samples, three of them of class 1; client 1 one, of class 2; client 2 none.
TEST = np.zeros((5, 2), dtype=np.float32), np.array([1, 2, 1, 0, 1])
OWNERS = np.array([0, 1, 0, 0, 0])
PARTITION = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]


def constant(**options):
    return Supervised(
        Constant(),
        (X, np.array([0, 1, 2, 0, 1, 2])),
        TEST,
        partition=PARTITION,
        test_clients=OWNERS,
        **options,
    )


LOSSES = {k: math.log(1 + math.e + 1 / math.e) - z for k, z in enumerate((0, 1, -1))}


def test_by_volume_and_by_client():
    task = constant()
    evaluation = task.evaluate(task.init())
    assert evaluation.test_accuracy == pytest.approx(3 / 5)
    assert evaluation.test_loss == pytest.approx((3 * LOSSES[1] + LOSSES[0] + LOSSES[2]) / 5)
    assert evaluation.extra == {}
    task = constant(weigh="clients", perplexity=True)
    evaluation = task.evaluate(task.init())
    assert evaluation.test_accuracy == pytest.approx((3 / 4 + 0) / 2)
    expected = ((3 * LOSSES[1] + LOSSES[0]) / 4 + LOSSES[2]) / 2
    assert evaluation.test_loss == pytest.approx(expected)
    assert evaluation.extra["perplexity"] == pytest.approx(math.exp(expected))
    assert evaluation.per_class == [0.0, 1.0, 0.0]


def test_each_client_on_its_own_test_samples():
    task = constant()
    assert task.client_accuracies(task.init()) == [0.75, 0.0, None]
    assert [task.client_accuracy(k, task.init()) for k in range(3)] == [0.75, 0.0, None]


def test_what_is_tested_is_described():
    description = constant().test_description()
    assert description == {"clients": 2, "samples": 5, "weigh": "volume", "most_frequent": 0.6}
    # Over clients: class 1 has 3/4 of the one and none of the other, class 2 all of the other.
    shares = constant(weigh="clients").test_description()["most_frequent"]
    assert shares == pytest.approx((0 + 1) / 2)
    plain = Supervised(Constant(), (X, np.arange(6) % 3), TEST, partition=PARTITION)
    assert plain.test_description() is None


def test_validation_samples_keep_their_owners():
    x = np.zeros((30, 2), dtype=np.float32)
    parts = [np.arange(20), np.arange(20, 30)]
    task = Supervised(
        Constant(),
        (x, np.array([1] * 20 + [0] * 10)),
        TEST,
        partition=parts,
        test_clients=np.zeros(5, dtype=int),
        validation=0.2,
    )
    assert task.data.test_counts.tolist() == [4, 2]
    assert task.client_accuracies(task.init()) == [1.0, 0.0]
    assert [len(part) for part in task.parts] == [16, 8]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"test_clients": [0, 1]}, "a client's number for each of 5 test samples"),
        ({"test_clients": [0, 0, 0, 0, 3]}, "has the client 3, but should be from 0 to 2"),
        ({"test_clients": [0, 0, 0, 0, -1]}, "has the client -1, but should be from 0 to 2"),
        ({"weigh": "clients"}, "weigh is 'clients', but should be 'volume', or given with"),
        ({"weigh": "both"}, "weigh is 'both'"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(InputError, match=words):
        Supervised(Constant(), (X, np.arange(6) % 3), TEST, partition=PARTITION, **options)


def test_a_sequence_has_an_accuracy_per_position():
    class Echo(nn.Module):
        """Predicts each character again."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, tokens):
            one_hot = nn.functional.one_hot(tokens.long(), 4).float()
            return self.scale * one_hot.transpose(1, 2)

    tokens = np.array([[0, 0, 1], [2, 2, 2]])
    following = np.array([[0, 1, 1], [2, 2, 3]])
    task = Supervised(
        Echo(),
        (tokens, following),
        (tokens, following),
        partition=[np.array([0]), np.array([1])],
        test_clients=np.array([0, 1]),
        perplexity=True,
    )
    evaluation = task.evaluate(task.init())
    assert evaluation.test_accuracy == pytest.approx(4 / 6)
    hit, miss = math.log(math.e + 3) - 1, math.log(math.e + 3)
    assert evaluation.test_loss == pytest.approx((4 * hit + 2 * miss) / 6)
    assert evaluation.extra["perplexity"] == pytest.approx(math.exp(evaluation.test_loss))
    assert task.test_description()["most_frequent"] == pytest.approx(2 / 6)
    assert task.class_shares is None


def test_links_of_clients_with_data_of_their_own_depend_on_the_seed_alone():
    task = constant()
    timetable = draw_timetable("bernoulli", task, rounds=3, seed=5)
    same = draw_timetable("bernoulli", constant(weigh="clients"), rounds=3, seed=5)
    other = draw_timetable("bernoulli", task, rounds=3, seed=6)
    assert timetable.base_probabilities.tolist() == same.base_probabilities.tolist()
    assert timetable.base_probabilities.tolist() != other.base_probabilities.tolist()
    assert ((timetable.base_probabilities >= 0.02) & (timetable.base_probabilities <= 1)).all()


def test_each_clients_own_model_is_judged_on_its_own_test_samples():
    # Each client knows one class only, and is never heard: its own model knows that class.
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 4)).astype(np.float32)
    y = np.repeat([0, 1], 20)
    task = Supervised(
        nn.Linear(4, 2),
        (x, y),
        (x, y),
        partition=[np.arange(20), np.arange(20, 40)],
        test_clients=y,
        training=LocalTraining(learning_rate=0.5, local_steps=20, decay=False),
    )
    never = np.zeros((3, 2), dtype=bool)
    result = simulate(task, "fedpbc", never, rounds=3)
    accuracies = result.record.summary["client_accuracy"]
    assert accuracies["own"]["mean"] > 0.95
    assert accuracies["own"]["mean"] > accuracies["mean"]["mean"]
    assert result.record.summary["test_data"]["clients"] == 2
