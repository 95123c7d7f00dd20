"""Which of its samples a client takes in its k-th batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.errors import InputError, Verbatim
from fedpbc.randomness import generator

__all__ = ["Batches"]


@dataclass(frozen=True)
class Batches:
    """Every client's batches: its samples in a random order, drawn anew each epoch.

    Batches are numbered from a client's first one on and go on from round to round, so a client's
    k-th batch does not depend on how its steps are cut into rounds. A short last batch of an epoch
    is skipped; a client with fewer samples than `batch_size` uses all it has in every batch.

    Example:
        >>> batches = Batches(seed=1, sizes=[50, 7], batch_size=16)
        >>> [len(batches.positions(client=0, k=k)) for k in range(4)]
        [16, 16, 16, 16]
        >>> sorted(batches.positions(client=1, k=0).tolist())
        [0, 1, 2, 3, 4, 5, 6]
    """

    seed: int
    sizes: Sequence[int] | npt.NDArray[np.integer[Any]]
    batch_size: int = 16
    # The permutation last used, one a client: a mere shortcut, so no part of the value.
    _last: dict[int, tuple[int, npt.NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("batch_size", self.batch_size, "at least 1")
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        for client, size in enumerate(self.sizes):
            if size < 1:
                given = Verbatim(f"without samples for client {client}")
                raise InputError("data", given, "at least one sample a client")

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process draws its own permutations.
        return type(self), (self.seed, self.sizes, self.batch_size)

    def per_epoch(self, client: int) -> int:
        """How many batches a client takes before its order is drawn anew.

        Example:
            >>> Batches(seed=1, sizes=[50, 7], batch_size=16).per_epoch(0)
            3
        """
        return max(1, int(self.sizes[client]) // self.batch_size)

    def positions(self, client: int, k: int) -> npt.NDArray[np.int64]:
        """The positions, within the client's own samples, of its k-th batch.

        Example:
            >>> batches = Batches(seed=1, sizes=[32], batch_size=16)
            >>> epoch = [batches.positions(0, k) for k in (0, 1)]
            >>> sorted(np.concatenate(epoch).tolist()) == list(range(32))
            True
        """
        return self.span(client, k, 1).reshape(-1)

    def span(self, client: int, k: int, count: int) -> npt.NDArray[np.int64]:
        """The positions of ``count`` batches from the k-th on, one a row.

        Example:
            >>> batches = Batches(seed=1, sizes=[32], batch_size=16)
            >>> batches.span(0, 3, 2)[1].tolist() == batches.positions(0, 4).tolist()
            True
        """
        per_epoch, size = self.per_epoch(client), min(int(self.sizes[client]), self.batch_size)
        pieces, left = [], count
        while left:
            epoch, batch = divmod(k, per_epoch)
            taken = min(left, per_epoch - batch)
            pieces.append(self._order(client, epoch)[batch * size : (batch + taken) * size])
            k, left = k + taken, left - taken
        # Always a copy, so that no caller can change the order kept.
        return np.concatenate(pieces).reshape(count, size)

    def _order(self, client: int, epoch: int) -> npt.NDArray[np.int64]:
        known, order = self._last.get(client, (-1, None))
        if order is None or known != epoch:
            order = generator(self.seed, "batches", client, epoch).permutation(self.sizes[client])
            self._last[client] = epoch, order
        return order
