"""Samples that are generated for each client: a pure function of the seed and the client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import load
from fedpbc.data.synthetic import SyntheticClients
from fedpbc.errors import InputError
from fedpbc.randomness import generator

SMALL = SyntheticClients(samples=5, features=4, classes=3)
CLIENTS = st.integers(0, 10_000_000)


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@given(st.integers(0, 2**63), st.lists(CLIENTS, min_size=2, max_size=5))
def test_samples_depend_on_the_seed_and_the_client_alone(seed, clients):
    forward = {client: SMALL.train(seed, client) for client in clients}
    for client in reversed(clients):
        again = SyntheticClients(samples=5, features=4, classes=3)
        again.test(seed, client, 2)
        assert equal(again.train(seed, client), forward[client])


@given(CLIENTS)
def test_other_clients_seeds_and_purposes_have_other_samples(client):
    inputs, _ = SMALL.train(1, client)
    for others in (SMALL.train(1, client + 1), SMALL.train(2, client), SMALL.test(1, client, 5)):
        assert not np.isin(others[0], inputs).any()


def test_labels_are_those_of_the_client_s_linear_model_worked_by_hand():
    clients = SyntheticClients(samples=7, features=2, classes=3, model_spread=2, input_spread=3)
    stream = generator(4, "synthetic client", 9)
    first = stream.standard_normal(3, dtype=np.float32)
    deviation = stream.standard_normal((3, 3), dtype=np.float32)
    noise = stream.standard_normal((7, 2), dtype=np.float32)
    common = generator(4, "synthetic model").standard_normal((3, 3), dtype=np.float32)
    x = (first[1:] + 3 * first[0]) + noise * np.array([1, 2**-0.6], dtype=np.float32)
    model = common + 2 * deviation
    inputs, labels = clients.train(4, 9)
    assert inputs == pytest.approx(x, rel=1e-5)
    scores = model[:, 0] + (x[:, None, :] * model[None, :, 1:]).sum(2)
    assert labels.tolist() == scores.argmax(1).tolist()


def test_without_spread_one_linear_model_is_right_about_all_clients():
    clients = SyntheticClients(model_spread=0, input_spread=0)
    common = generator(0, "synthetic model").standard_normal((10, 61), dtype=np.float32)
    for client in range(20):
        inputs, labels = clients.train(0, client)
        assert (inputs @ common[:, 1:].T + common[:, 0]).argmax(1).tolist() == labels.tolist()


def test_the_data_set_has_a_name_and_options():
    data = load("synthetic", samples=3, features=5, classes=4)
    assert data.train.inputs.shape[1:] == (5,)
    assert len(data.classes) == 4
    assert data.generator == SyntheticClients(samples=3, features=5, classes=4)
    assert data.fingerprint() != load("synthetic", samples=3, features=5).fingerprint()
    with pytest.raises(InputError, match=r"data\.classes is 1"):
        load("synthetic", classes=1)
