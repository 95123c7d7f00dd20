"""How the samples are shared out: to every client as many, of classes it has a taste for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.errors import InputError, Verbatim
from fedpbc.randomness import generator

__all__ = ["class_shares", "dirichlet_partition"]

Integers = npt.NDArray[np.integer[Any]]


def dirichlet_partition(
    labels: Integers | Sequence[int],
    clients: int,
    alpha: float,
    seed: int,
    classes: int | None = None,
) -> npt.NDArray[np.int64]:
    """The samples of each client: indices [clients, samples // clients], none of them twice.

    Client i's taste is ν_i ~ Dirichlet(α·1): the smaller α, the fewer classes it holds. Each of its
    samples has its label drawn from ν_i. Clients are served in turn; a class of which no sample is
    left is dropped from then on and the rest of ν_i renormalised, and where ν_i gives the classes
    that are left no mass at all, they are drawn evenly.

    Example:
        >>> labels = np.arange(60) % 3
        >>> parts = dirichlet_partition(labels, clients=4, alpha=0.1, seed=1)
        >>> parts.shape
        (4, 15)
        >>> sorted(parts.ravel().tolist()) == list(range(60))
        True
    """
    labels, classes = _checked(labels, classes)
    if not (np.isfinite(alpha) and alpha > 0):
        raise InputError("data.alpha", alpha, "a finite number above 0")
    if clients < 1:
        raise InputError("clients", clients, "at least 1")
    if clients > len(labels):
        raise InputError("clients", clients, f"at most {len(labels)}, the number of samples")
    each = len(labels) // clients
    left = np.bincount(labels, minlength=classes)
    drawn = np.empty((clients, each), dtype=np.int64)
    for client in range(clients):
        random = generator(seed, "partition", client)
        taste = random.dirichlet(np.full(classes, alpha))
        drawn[client] = _draw_labels(taste, random.random(each), left)
    return _take_samples(labels, drawn, classes, seed)


def _draw_labels(
    taste: npt.NDArray[np.float64], uniforms: npt.NDArray[np.float64], left: Integers
) -> npt.NDArray[np.int64]:
    """One client's labels, one for each uniform number; takes them off `left`.

    All that remain are drawn at once; if a class runs out among them, those drawn after that are
    drawn again without it. The result is the same as drawing one by one.
    """
    drawn = np.empty(len(uniforms), dtype=np.int64)
    done = 0
    while done < len(uniforms):
        weights = np.where(left > 0, taste, 0.0)
        if not weights.any():
            weights = (left > 0).astype(np.float64)
        edges = np.cumsum(weights)
        # The last edge is exactly 1, above every uniform number, and a class of no weight has no
        # room between its edges: only classes that have samples left can be hit.
        labels = np.searchsorted(edges / edges[-1], uniforms[done:], side="right")
        counts = np.bincount(labels, minlength=len(left))
        emptied = np.flatnonzero((counts > 0) & (counts >= left))
        if len(emptied):
            until = min(np.flatnonzero(labels == c)[left[c] - 1] for c in emptied) + 1
            labels = labels[:until]
            counts = np.bincount(labels, minlength=len(left))
        drawn[done : done + len(labels)] = labels
        left -= counts
        done += len(labels)
    return drawn


def _take_samples(
    labels: Integers, drawn: npt.NDArray[np.int64], classes: int, seed: int
) -> npt.NDArray[np.int64]:
    """Samples of the drawn labels: each class is handed out in a random order."""
    wanted = drawn.ravel()
    counts = np.bincount(wanted, minlength=classes)
    handed_out = [
        # Shuffled, for neighbours in a data set may be alike (one street, one writer).
        generator(seed, "partition order", c).permutation(np.flatnonzero(labels == c))[: counts[c]]
        for c in range(classes)
    ]
    samples = np.empty(len(wanted), dtype=np.int64)
    samples[np.argsort(wanted, kind="stable")] = np.concatenate(handed_out)
    return samples.reshape(drawn.shape)


def class_shares(
    labels: Integers | Sequence[int],
    parts: Sequence[Integers] | Integers,
    classes: int,
) -> npt.NDArray[np.float64]:
    """The share of each class in each client's samples, [clients, classes]: the empirical ν_i.

    Example:
        >>> class_shares([0, 0, 1, 2], [np.array([0, 1]), np.array([1, 2])], classes=3).tolist()
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """
    labels, classes = _checked(labels, classes)
    shares = np.empty((len(parts), classes))
    for client, part in enumerate(parts):
        if len(part) == 0:
            given = Verbatim(f"without samples for client {client}")
            raise InputError("data", given, "at least one sample a client")
        shares[client] = np.bincount(labels[part], minlength=classes) / len(part)
    return shares


def _checked(labels: Integers | Sequence[int], classes: int | None) -> tuple[Integers, int]:
    labels = np.asarray(labels)
    if labels.size == 0:
        raise InputError("data", Verbatim("empty"), "at least one sample a client")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        given = Verbatim(f"{labels.dtype} of shape {labels.shape}")
        raise InputError("labels", given, "one integer a sample")
    low, high = int(labels.min()), int(labels.max())
    classes = high + 1 if classes is None else classes
    if low < 0 or high >= classes:
        raise InputError("labels", Verbatim(f"from {low} to {high}"), f"from 0 to {classes - 1}")
    return labels, classes
