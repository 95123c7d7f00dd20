"""Clients that bring their own samples: numbering, parts, and what is held out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import DataSet, Split, first_clients, parts_of
from fedpbc.data.natural import hold_out_last, hold_out_of_each, number_clients
from fedpbc.errors import InputError

names = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60)


@given(names)
def test_clients_are_numbered_by_their_volume(owners):
    numbers, clients = number_clients(owners)
    assert [clients[k] for k in numbers] == owners
    counts = np.bincount(numbers).tolist()
    assert counts == sorted(counts, reverse=True)
    firsts = [owners.index(client) for client in clients]
    for k in range(len(counts) - 1):
        assert counts[k] > counts[k + 1] or firsts[k] < firsts[k + 1]


@given(names)
def test_parts_are_a_partition_in_order(owners):
    numbers, clients = number_clients(owners)
    parts = parts_of(numbers, len(clients))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(owners)))
    for client, part in enumerate(parts):
        assert part.tolist() == [k for k, number in enumerate(numbers) if number == client]


@given(names)
def test_a_fifth_of_each_clients_samples_is_for_testing(owners):
    numbers, clients = number_clients(owners)
    train, test = hold_out_of_each(numbers, len(owners))
    assert sorted([*train, *test]) == list(range(len(owners)))
    for client in range(len(clients)):
        count = int((numbers == client).sum())
        assert int((numbers[test] == client).sum()) == count // 5
    again = hold_out_of_each(numbers, len(owners))[1]
    np.testing.assert_array_equal(test, again)


def test_the_last_fifth_with_a_gap():
    # Ten windows of client 1 among 25 of client 0; with fewer than a gap all stay.
    clients = np.array([0] * 12 + [1] * 10 + [0] * 13)
    train, test = hold_out_last(clients, gap=4)
    own = np.flatnonzero(clients == 0)
    assert test[clients[test] == 0].tolist() == own[20:].tolist()
    assert train[clients[train] == 0].tolist() == own[:16].tolist()
    assert int((clients[test] == 1).sum()) == 2
    assert int((clients[train] == 1).sum()) == 4
    train, test = hold_out_last(clients, gap=8)
    assert int((clients[train] == 1).sum()) == 10
    assert int((clients[test] == 1).sum()) == 0


def data(test_owners=(0, 1, 1)):
    train = Split(np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 2]))
    count = len(test_owners)
    test = Split(np.zeros((count, 2)), np.zeros(count, dtype=int), np.array(test_owners))
    return DataSet("mine", train, test, ("no", "yes"), client_names=("Ann", "Ben", "Cy"))


def test_the_clients_with_most_samples():
    first = first_clients(data(), 2)
    assert first.client_names == ("Ann", "Ben")
    assert first.train.clients.tolist() == [0, 0, 1]
    assert first.train.inputs[:, 0].tolist() == [0.0, 2.0, 4.0]
    assert first_clients(data(), 3).fingerprint() == data().fingerprint()
    assert first.fingerprint() != data().fingerprint()


def test_more_clients_than_there_are():
    with pytest.raises(InputError, match=r"clients is 4, but should be at most 3: mine has"):
        first_clients(data(), 4)
    with pytest.raises(InputError, match="the first 1 clients of mine have no test data"):
        first_clients(data(test_owners=(1, 2)), 1)


def test_data_of_clients_is_checked():
    with pytest.raises(InputError, match=r"clients in test are 0 to 3, but should be 0 to 2"):
        data(test_owners=(0, 3))
    split = Split(np.zeros((2, 2)), np.array([0, 1]), np.array([0, 2]))
    with pytest.raises(InputError, match="client 'Ben' has no training samples"):
        DataSet("mine", split, split, ("a", "b"), client_names=("Ann", "Ben", "Cy"))
    with pytest.raises(InputError, match="train has clients, but there are 0 names"):
        DataSet("mine", split, split, ("a", "b"))
    with pytest.raises(InputError, match="a client's number for each of 2 samples"):
        Split(np.zeros((2, 2)), np.array([0, 1]), np.array([0]))
    words = Split(np.array([[0, 5]]), np.array([0]))
    with pytest.raises(InputError, match="inputs in train are 0 to 5, but should be 0 to 2"):
        DataSet("mine", words, words, ("a",), vocabulary=3)
    wide = Split(np.zeros((2, 3)), np.array([0, 1]))
    narrow = Split(np.zeros((2, 2)), np.array([0, 1]))
    with pytest.raises(InputError, match=r"test has inputs of shape \(3,\)"):
        DataSet("mine", narrow, wide, ("a", "b"))
