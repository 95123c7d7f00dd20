"""Natural partitions: samples that clients bring themselves, such as what one person wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedpbc.data.dataset import DataSet, Split
from fedpbc.errors import InputError
from fedpbc.randomness import generator

__all__ = ["first_clients", "hold_out_last", "hold_out_of_each", "number_clients", "parts_of"]

Integers = npt.NDArray[np.int64]

TEST_PART = 5
"""One in so many of each client's samples is for testing, where a data set has no test split."""


def number_clients(names: Sequence[str] | npt.NDArray[np.str_]) -> tuple[Integers, tuple[str, ...]]:
    """Return the number of each sample's client, and the clients' names in the order of numbers.

    The client with most samples is the first; of equals, the one whose sample comes first.

    Example:
        >>> numbers, clients = number_clients(["b", "a", "c", "a", "c"])
        >>> numbers.tolist(), clients
        ([2, 0, 1, 0, 1], ('a', 'c', 'b'))
    """
    unique, first, inverse, counts = np.unique(
        np.asarray(names), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -counts))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse.reshape(-1)], tuple(str(name) for name in unique[order])


def parts_of(clients: Integers, count: int) -> list[Integers]:
    """Return the indices of the samples of each of ``count`` clients.

    Example:
        >>> [part.tolist() for part in parts_of(np.array([1, 0, 1]), 2)]
        [[1], [0, 2]]
    """
    order = np.argsort(clients, kind="stable")
    ends = np.cumsum(np.bincount(clients, minlength=count))
    return [part.astype(np.int64) for part in np.split(order, ends[:-1])]


def first_clients(data: DataSet, count: int) -> DataSet:
    """Return the data of the ``count`` clients with most samples.

    Example:
        >>> split = Split(np.zeros((3, 2)), np.zeros(3, dtype=int), np.array([0, 0, 1]))
        >>> data = DataSet("mine", split, split, ("no", "yes"), client_names=("Ann", "Ben"))
        >>> first_clients(data, 1).client_names
        ('Ann',)
    """
    available = len(data.client_names)
    if count > available:
        raise InputError(
            "clients", count, f"at most {available}: {data.name} has the data of so many clients"
        )
    if count == available:
        return data
    train, test = (_of_first(split, count) for split in (data.train, data.test))
    if not len(test.inputs):
        raise InputError(
            "clients", count, f"larger: the first {count} clients of {data.name} have no test data"
        )
    return replace(data, train=train, test=test, client_names=data.client_names[:count])


def _of_first(split: Split, count: int) -> Split:
    assert split.clients is not None
    kept = split.clients < count
    return Split(split.inputs[kept], split.labels[kept], split.clients[kept])


def hold_out_of_each(clients: Integers | None, samples: int) -> tuple[Integers, Integers]:
    """Return the indices of training and test samples: one in five of each client's is for testing.

    They are drawn, the same each time. A client with fewer than five samples keeps them all.
    ``clients`` None: all samples are one client's.

    Example:
        >>> train, test = hold_out_of_each(np.array([0] * 10 + [1] * 4), 14)
        >>> len(train), len(test), bool((test < 10).all())
        (12, 2, True)
    """
    owners = np.zeros(samples, dtype=np.int64) if clients is None else clients
    is_test = np.zeros(samples, dtype=bool)
    for client, part in enumerate(parts_of(owners, int(owners.max(initial=-1)) + 1)):
        order = generator(0, "test samples", client).permutation(part)
        is_test[order[: len(part) // TEST_PART]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def hold_out_last(clients: Integers, gap: int) -> tuple[Integers, Integers]:
    """Return the indices of training and test samples: each client's last fifth is for testing.

    For windows of a text that overlap: ``gap`` windows between the two parts are left out, so that
    no character of the one is in the other. A client with too few samples keeps them all.

    Example:
        >>> train, test = hold_out_last(np.zeros(20, dtype=int), gap=3)
        >>> train.tolist() == list(range(13)), test.tolist()
        (True, [16, 17, 18, 19])
    """
    train, test = [], []
    for part in parts_of(clients, int(clients.max(initial=-1)) + 1):
        count = len(part) // TEST_PART
        first = len(part) - count
        if first - gap < 1:
            count, first = 0, len(part)
        train.append(part[: first - gap] if count else part)
        test.append(part[first:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
