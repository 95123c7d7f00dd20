"""Batch order: which samples form a client's k-th batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedpbc.errors import InputError
from fedpbc.options import check_fields
from fedpbc.randomness import Streams

__all__ = ["Batches"]


CACHED_BYTES = 2**26
"""Permutations of clients are kept, up to this size."""

OVERHEAD = 300
"""Bytes that Python takes for each of them, about."""


@dataclass(frozen=True, eq=False)
class Batches:
    """Every client's batches: its samples, reshuffled each epoch.

    Batches are numbered per client and continue from round to round, so a client's k-th batch does
    not depend on how its steps are split into rounds. A short last batch of an epoch is skipped; a
    client with fewer samples than `batch_size` uses all its samples in every batch.

    Example:
        >>> batches = Batches(seed=1, sizes=[50, 7], batch_size=16)
        >>> [len(batches.positions(client=0, k=k)) for k in range(4)]
        [16, 16, 16, 16]
        >>> sorted(batches.positions(client=1, k=0).tolist())
        [0, 1, 2, 3, 4, 5, 6]
    """

    seed: int
    sizes: npt.NDArray[np.int64]
    batch_size: Annotated[int, Ge(1)] = 16
    # Cache: each client's current epoch and permutation.
    _permutations: dict[int, tuple[int, npt.NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    _streams: Streams = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        seed: int,
        sizes: Sequence[int] | npt.NDArray[np.integer[Any]],
        batch_size: int = 16,
    ) -> None:
        array = np.array(sizes, dtype=np.int64)
        array.flags.writeable = False
        for name, value in (("seed", seed), ("sizes", array), ("batch_size", batch_size)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_permutations", {})
        check_fields(self)
        object.__setattr__(self, "_streams", Streams(seed, "batches"))
        if len(array) and array.min() < 1:
            client = int((array < 1).argmax())
            raise InputError(f"client {client} has no samples, but needs at least one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batches) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[int, int, bytes]:
        return self.seed, self.batch_size, self.sizes.tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cache: another process draws its own permutations.
        return type(self), (self.seed, self.sizes, self.batch_size)

    def per_epoch(self, client: int) -> int:
        """Return the number of batches in a client's epoch."""
        return max(1, int(self.sizes[client]) // self.batch_size)

    def size(self, client: int) -> int:
        """Return the number of samples in each of a client's batches."""
        return min(int(self.sizes[client]), self.batch_size)

    def sizes_of(self, clients: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the same for several clients."""
        sizes: npt.NDArray[np.int64] = np.minimum(self.sizes[np.asarray(clients)], self.batch_size)
        return sizes

    def positions(self, client: int, k: int) -> npt.NDArray[np.int64]:
        """Return the positions of the k-th batch within the client's own samples."""
        return self.span(client, k, 1).reshape(-1)

    def span(self, client: int, k: int, count: int) -> npt.NDArray[np.int64]:
        """Return the positions of ``count`` batches from the k-th on, one batch per row."""
        positions: npt.NDArray[np.int64] = self.spans([client], [k], count)[0]
        return positions

    def spans(
        self, clients: Sequence[int], first_batches: Sequence[int], count: int
    ) -> npt.NDArray[np.int64]:
        """Return the same for several clients whose batches have one size, [n, count, size]."""
        totals = self.sizes[np.asarray(clients, dtype=np.int64)].tolist()
        sizes = {min(total, self.batch_size) for total in totals} or {self.batch_size}
        if len(sizes) > 1:
            raise ValueError(f"batches have the sizes {sorted(sizes)}, but should have one")
        (size,) = sizes
        # Always a copy, so that no caller can modify the cached permutations.
        positions = np.empty((len(totals), count * size), dtype=np.int64)
        for row, client, total, k in zip(positions, clients, totals, first_batches, strict=True):
            per_epoch, filled = total // self.batch_size or 1, 0
            epoch, batch = divmod(k, per_epoch)
            while filled < len(row):
                order = self._permutation(client, epoch, total)
                begin = batch * size
                taken = min(len(row) - filled, per_epoch * size - begin)
                row[filled : filled + taken] = order[begin : begin + taken]
                epoch, batch, filled = epoch + 1, 0, filled + taken
        return positions.reshape(-1, count, size)

    def _permutation(self, client: int, epoch: int, total: int) -> npt.NDArray[np.int64]:
        cached_epoch, permutation = self._permutations.get(client, (-1, None))
        if permutation is None or cached_epoch != epoch:
            permutation = self._streams.at(client, epoch).permutation(total)
            if len(self._permutations) * (permutation.nbytes + OVERHEAD) > CACHED_BYTES:
                self._permutations.clear()
            self._permutations[client] = epoch, permutation
        return permutation
