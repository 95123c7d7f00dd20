import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.data import class_shares, dirichlet_partition
from fedpbc.data.partition import _draw_labels
from fedpbc.errors import InputError
from fedpbc.randomness import generator

ALPHAS = st.sampled_from([0.001, 0.1, 1.0, 1000.0])


def one_by_one(labels, clients, alpha, seed, classes):
    """The partition read aloud: one client after the other, one sample after the other."""
    pools = [
        list(generator(seed, "partition order", c).permutation(np.flatnonzero(labels == c)))
        for c in range(classes)
    ]
    parts = []
    for client in range(clients):
        random = generator(seed, "partition", client)
        taste = random.dirichlet(np.full(classes, alpha))
        part = []
        for uniform in random.random(len(labels) // clients):
            weights = np.array([taste[c] if pools[c] else 0.0 for c in range(classes)])
            if weights.sum() == 0:
                weights = np.array([1.0 if pools[c] else 0.0 for c in range(classes)])
            edges = np.cumsum(weights) / np.cumsum(weights)[-1]
            label = next(c for c in range(classes) if uniform < edges[c])
            part.append(pools[label].pop(0))
        parts.append(part)
    return np.array(parts)


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    share=st.floats(0.01, 1),
    alpha=ALPHAS,
    seed=st.integers(0, 5),
)
def test_equals_drawing_one_by_one(labels, share, alpha, seed):
    labels = np.array(labels)
    clients = max(1, int(share * len(labels)))
    parts = dirichlet_partition(labels, clients, alpha, seed, classes=7)
    np.testing.assert_array_equal(parts, one_by_one(labels, clients, alpha, seed, 7))


@given(
    size=st.integers(1, 400),
    clients=st.integers(1, 400),
    alpha=ALPHAS,
    seed=st.integers(0, 2**63 - 1),
)
def test_equal_volumes_and_no_sample_twice(size, clients, alpha, seed):
    clients = min(clients, size)
    labels = np.arange(size) ** 2 % 7
    parts = dirichlet_partition(labels, clients, alpha, seed)
    assert parts.shape == (clients, size // clients)
    assert parts.dtype == np.int64
    assert len(np.unique(parts)) == parts.size
    assert parts.min() >= 0
    assert parts.max() < size


def test_a_class_that_runs_out_is_dropped_at_once():
    left = np.array([2, 10, 10])
    # 0.1 is class 0 while it lasts; afterwards the edges are 0, 0.5, 1.
    drawn = _draw_labels(np.full(3, 1 / 3), np.array([0.1, 0.9, 0.1, 0.1, 0.4, 0.6]), left)
    assert drawn.tolist() == [0, 2, 0, 1, 1, 2]
    assert left.tolist() == [0, 8, 8]


def test_classes_left_without_mass_are_drawn_evenly():
    left = np.array([1, 5, 0, 5])
    drawn = _draw_labels(np.array([1.0, 0, 0, 0]), np.array([0.7, 0.2, 0.49, 0.51]), left)
    assert drawn.tolist() == [0, 1, 1, 3]


def test_taste_is_narrow_for_small_alpha_and_even_for_large():
    labels = np.repeat(np.arange(10), 1000)
    largest = {
        alpha: class_shares(labels, dirichlet_partition(labels, 100, alpha, 1), 10).max(axis=1)
        for alpha in (0.001, 0.1, 1000.0)
    }
    # Up to 2 clients in 10 meet an exhausted class, hence the median.
    assert np.median(largest[0.001]) == 1.0
    assert 0.4 < largest[0.1].mean() < 0.9
    assert largest[1000.0].mean() < 0.2


def test_first_clients_shares_follow_their_taste():
    labels = np.repeat(np.arange(10), 10_000)
    parts = dirichlet_partition(labels, 20, 0.5, seed=3)
    taste = generator(3, "partition", 0).dirichlet(np.full(10, 0.5))
    np.testing.assert_allclose(class_shares(labels, parts, 10)[0], taste, atol=0.03)


def test_pure_function_of_the_seed():
    labels = np.arange(500) % 10
    first = dirichlet_partition(labels, 10, 0.1, seed=1)
    np.testing.assert_array_equal(first, dirichlet_partition(labels, 10, 0.1, seed=1))
    assert (first != dirichlet_partition(labels, 10, 0.1, seed=2)).any()


def test_ten_thousand_clients():
    parts = dirichlet_partition(np.arange(90_000) % 10, 10_000, 0.1, seed=1)
    assert parts.shape == (10_000, 9)
    assert len(np.unique(parts)) == 90_000


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e12, 1e300])
def test_absurd_alphas_still_partition(alpha):
    parts = dirichlet_partition(np.arange(100) % 4, 5, alpha, seed=1)
    assert len(np.unique(parts)) == 100


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_wrong_alpha(alpha):
    with pytest.raises(InputError, match=r"^alpha is .*, but should be "):
        dirichlet_partition([0, 1], 1, alpha, seed=1)


@pytest.mark.parametrize(
    ("labels", "clients", "classes", "words"),
    [
        ([], 1, None, "data is empty"),
        ([0, 1, 1], 4, None, "clients is 4, but should be at most 3, the number of samples"),
        ([0, 1, 1], 0, None, "clients is 0, but should be at least 1"),
        ([0, 3], 1, 3, "labels are 0 to 3, but should be 0 to 2"),
        ([-1, 1], 1, None, "labels are -1 to 1, but should be 0 to 1"),
        ([0.5, 1], 1, None, "labels are float64 of shape"),
        ([[0, 1]], 1, None, "should be one integer per sample"),
    ],
)
def test_wrong_samples_and_clients(labels, clients, classes, words):
    with pytest.raises(InputError, match=words):
        dirichlet_partition(labels, clients, 0.1, seed=1, classes=classes)


def test_class_shares_of_unequal_parts():
    shares = class_shares(np.array([0, 2, 2, 1]), [np.array([0, 1, 2]), np.array([3])], classes=4)
    np.testing.assert_allclose(shares, [[1 / 3, 0, 2 / 3, 0], [0, 1, 0, 0]])


def test_class_shares_of_a_client_without_samples():
    with pytest.raises(InputError, match="client 1 has no samples"):
        class_shares([0, 1], [np.array([0]), np.array([], dtype=int)], classes=2)
