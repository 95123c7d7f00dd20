import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import Batches
from fedpbc.errors import InputError
from fedpbc.randomness import generator


@given(
    size=st.integers(1, 200),
    batch_size=st.integers(1, 40),
    epoch=st.integers(0, 2**40),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_epoch_is_without_replacement(size, batch_size, epoch, seed):
    batches = Batches(seed, [1, size], batch_size)
    count = batches.per_epoch(1)
    assert count == max(1, size // batch_size)
    taken = [batches.positions(1, epoch * count + b) for b in range(count)]
    assert all(len(batch) == min(size, batch_size) for batch in taken)
    together = np.concatenate(taken)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < size


def test_the_kth_batch_by_hand():
    batches = Batches(seed=5, sizes=np.array([10, 10]), batch_size=4)
    # Two batches of 4 an epoch, the last 2 samples skipped: batch 5 is the second of epoch 2.
    order = generator(5, "batches", 1, 2).permutation(10)
    np.testing.assert_array_equal(batches.positions(1, 5), order[4:8])
    assert batches.positions(1, 5).dtype == np.int64


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=40))
def test_pure_whatever_was_asked_before(questions):
    used = Batches(1, [40, 16, 5], 8)
    for client, k in questions:
        fresh = Batches(1, [40, 16, 5], 8)
        np.testing.assert_array_equal(used.positions(client, k), fresh.positions(client, k))


def test_changing_an_answer_changes_no_later_one():
    batches = Batches(1, [20], 5)
    first = batches.positions(0, 0)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(batches.positions(0, 0), kept)


def test_epochs_clients_and_seeds_differ():
    batches = Batches(1, [64, 64], 64)
    orders = [batches.positions(0, 0), batches.positions(0, 1), batches.positions(1, 0)]
    orders.append(Batches(2, [64, 64], 64).positions(0, 0))
    assert len({tuple(order) for order in orders}) == 4


def test_caches_one_permutation_per_client():
    batches = Batches(1, [20, 20], 5)
    for k in range(100):
        batches.positions(k % 2, k)
    assert len(batches._permutations) == 2


def test_is_a_value():
    batches = Batches(1, np.array([20, 7]), 5)
    batches.positions(0, 0)
    assert batches == Batches(1, [20, 7], 5)
    assert hash(batches) == hash(Batches(1, (20, 7), 5))
    copied = pickle.loads(pickle.dumps(batches))
    assert copied == batches
    assert not copied._permutations


def test_wrong_sizes():
    with pytest.raises(InputError, match="client 1 has no samples"):
        Batches(1, [3, 0])
    with pytest.raises(InputError, match="batch_size is 0, but should be at least 1"):
        Batches(1, [3], 0)


def test_a_span_is_one_batch_after_another_across_epochs():
    batches = Batches(seed=1, sizes=[32], batch_size=16)
    expected = [batches.positions(0, k).tolist() for k in range(3, 8)]
    assert batches.span(0, 3, 5).tolist() == expected


@given(
    clients=st.lists(st.integers(0, 3), max_size=6),
    first=st.integers(0, 30),
    count=st.integers(1, 9),
)
def test_several_clients_batches_are_those_of_each(clients, first, count):
    batches = Batches(3, [40, 17, 33, 16], 16)
    firsts = [first + 2 * k for k in range(len(clients))]
    together = batches.spans(clients, firsts, count)
    assert together.shape == (len(clients), count, 16)
    fresh = Batches(3, [40, 17, 33, 16], 16)
    for client, begin, positions in zip(clients, firsts, together, strict=True):
        expected = [fresh.positions(client, begin + k) for k in range(count)]
        np.testing.assert_array_equal(positions, expected)


@pytest.mark.parametrize("clients", [[0, 1], [1, 0]])
def test_batches_of_several_sizes_are_not_drawn_together(clients):
    with pytest.raises(ValueError, match=r"sizes \[7, 16\], but should have one"):
        Batches(1, [50, 7], 16).spans(clients, [0, 0], 2)
