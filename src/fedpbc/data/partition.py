"""Equal-sized Dirichlet label-skew partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from fedpbc.errors import InputError
from fedpbc.limits import MAX_CLIENTS, numbers_of
from fedpbc.options import check_arguments
from fedpbc.randomness import generator

__all__ = ["check_labels", "class_shares", "dirichlet_partition"]

Integers = npt.NDArray[np.integer[Any]]


@check_arguments
def dirichlet_partition(
    labels: Integers | Sequence[int],
    clients: Annotated[int, Ge(1), Le(MAX_CLIENTS)],
    alpha: Annotated[float, Gt(0)],
    seed: Annotated[int, Ge(0)],
    classes: Annotated[int, Ge(1), Le(1_000_000)] | None = None,
) -> npt.NDArray[np.int64]:
    """Return each client's sample indices, [clients, samples // clients], without repetition.

    Client i draws ν_i ~ Dirichlet(α·1), then a label from ν_i for each of its samples: the smaller
    α, the fewer classes it holds. Clients draw one after another. A class with no samples left is
    dropped and ν_i renormalised; if ν_i gives the remaining classes no mass, they are drawn
    uniformly.

    Example:
        >>> labels = np.arange(60) % 3
        >>> parts = dirichlet_partition(labels, clients=4, alpha=0.1, seed=1)
        >>> parts.shape
        (4, 15)
        >>> sorted(parts.ravel().tolist()) == list(range(60))
        True
    """
    labels, classes = check_labels(labels, classes)
    if clients > len(labels):
        raise InputError("clients", clients, f"at most {len(labels)}, the number of samples")
    samples_per_client = len(labels) // clients
    remaining = np.bincount(labels, minlength=classes)
    drawn = np.empty((clients, samples_per_client), dtype=np.int64)
    for client in range(clients):
        random = generator(seed, "partition", client)
        distribution = random.dirichlet(np.full(classes, alpha))
        uniforms = random.random(samples_per_client)
        drawn[client] = _draw_labels(distribution, uniforms, remaining)
    return _assign_samples(labels, drawn, classes, seed)


def _draw_labels(
    distribution: npt.NDArray[np.float64], uniforms: npt.NDArray[np.float64], remaining: Integers
) -> npt.NDArray[np.int64]:
    """Draw one client's labels, one per uniform number, and subtract them from `remaining`.

    Vectorised: all labels are drawn at once; when a class runs out among them, those after that
    point are drawn again without it. The result is the same as drawing one by one.
    """
    drawn = np.empty(len(uniforms), dtype=np.int64)
    done = 0
    while done < len(uniforms):
        weights = np.where(remaining > 0, distribution, 0.0)
        if not weights.any():
            weights = (remaining > 0).astype(np.float64)
        edges = np.cumsum(weights)
        # The last edge is exactly 1, above every uniform number, and a class of weight 0 has an
        # empty interval: only classes with samples left can be drawn.
        labels = np.searchsorted(edges / edges[-1], uniforms[done:], side="right")
        counts = np.bincount(labels, minlength=len(remaining))
        emptied = np.flatnonzero((counts > 0) & (counts >= remaining))
        if len(emptied):
            until = min(np.flatnonzero(labels == c)[remaining[c] - 1] for c in emptied) + 1
            labels = labels[:until]
            counts = np.bincount(labels, minlength=len(remaining))
        drawn[done : done + len(labels)] = labels
        remaining -= counts
        done += len(labels)
    return drawn


def _assign_samples(
    labels: Integers, drawn: npt.NDArray[np.int64], classes: int, seed: int
) -> npt.NDArray[np.int64]:
    """Replace each drawn label by a sample of that class, in random order."""
    flat = drawn.ravel()
    counts = np.bincount(flat, minlength=classes)
    by_class = [
        # Shuffled, since neighbours in a data set may be alike (one street, one writer).
        generator(seed, "partition order", c).permutation(np.flatnonzero(labels == c))[: counts[c]]
        for c in range(classes)
    ]
    samples = np.empty(len(flat), dtype=np.int64)
    samples[np.argsort(flat, kind="stable")] = np.concatenate(by_class)
    return samples.reshape(drawn.shape)


def class_shares(
    labels: Integers | Sequence[int],
    parts: Sequence[Integers] | Integers,
    classes: int,
) -> npt.NDArray[np.float64]:
    """Return each class's share of each client's samples, [clients, classes]: the empirical ν_i."""
    labels, classes = check_labels(labels, classes)
    shares = np.empty((len(parts), classes))
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise InputError(f"client {client} has no samples, but needs at least one")
        shares[client] = np.bincount(labels[part], minlength=classes) / len(part)
    return shares


def check_labels(labels: Integers | Sequence[int], classes: int | None) -> tuple[Integers, int]:
    """Return the labels as an array and the number of classes; raise if a label is out of range."""
    labels = numbers_of("labels", labels)
    if labels.size == 0:
        raise InputError("data is empty, but should have at least one sample")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(
            f"labels are {labels.dtype} of shape {labels.shape}, "
            "but should be one integer per sample"
        )
    low, high = int(labels.min()), int(labels.max())
    classes = high + 1 if classes is None else classes
    if low < 0 or high >= classes:
        raise InputError(f"labels are {low} to {high}, but should be 0 to {classes - 1}")
    return labels, classes
