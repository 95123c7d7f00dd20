"""How the rows of a timetable are stored: a bit per link, or the numbers of those that are up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedRows", "RowWriter", "SparseRows", "StoredRows"]

LARGE_BYTES = 2**26
"""Timetables of fewer bytes are stored as bits, whatever they hold."""


class StoredRows(Protocol):
    """All rounds of a timetable."""

    clients: int
    rounds: int

    def up(self, t: int) -> NDArray[np.bool_]:
        """Whether each client is up in round ``t``."""

    def active(self, t: int) -> NDArray[np.int64]:
        """The clients that are up in round ``t``, ascending."""

    def active_counts(self) -> NDArray[np.int64]:
        """How many clients are up in each round."""

    def packed_rows(self) -> Iterator[NDArray[np.uint8]]:
        """Each round with a bit per client."""

    def contacts(self, count: int) -> NDArray[np.int64]:
        """In how many rounds each of the first ``count`` clients is up."""

    def next_contact(self, client: int, start: int) -> int | None:
        """The first round from ``start`` on in which the client is up, or None."""

    def columns(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """All rounds of some clients."""


class PackedRows:
    """A bit per link."""

    def __init__(self, packed: NDArray[np.uint8], clients: int) -> None:
        self.clients, self.rounds = clients, len(packed)
        self._packed = packed

    def up(self, t: int) -> NDArray[np.bool_]:
        """Whether each client is up in round ``t``."""
        return np.unpackbits(self._packed[t], count=self.clients).view(np.bool_)

    def active(self, t: int) -> NDArray[np.int64]:
        """The clients that are up in round ``t``, ascending."""
        return np.flatnonzero(self.up(t))

    def active_counts(self) -> NDArray[np.int64]:
        """How many clients are up in each round."""
        # The bits that fill the last byte are zero. By rows, for the memory.
        return np.array([np.count_nonzero(np.unpackbits(row)) for row in self._packed])

    def packed_rows(self) -> Iterator[NDArray[np.uint8]]:
        """Each round with a bit per client."""
        return iter(self._packed)

    def contacts(self, count: int) -> NDArray[np.int64]:
        """In how many rounds each of the first ``count`` clients is up."""
        counts = np.zeros(count, dtype=np.int64)
        for row in self._packed[:, : -(-count // 8)]:
            counts += np.unpackbits(row, count=count)
        return counts

    def next_contact(self, client: int, start: int) -> int | None:
        """The first round from ``start`` on in which the client is up, or None."""
        column, bit = self._packed[:, client >> 3], 128 >> (client & 7)
        # In growing blocks: most contacts are near, and a client that never returns costs one
        # pass over its column.
        size = 32
        while start < self.rounds:
            block = column[start : start + size] & bit
            first = int(block.argmax())
            if block[first]:
                return start + first
            start, size = start + size, 2 * size
        return None

    def columns(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """All rounds of some clients."""
        shifts = (7 - (clients & 7)).astype(np.uint8)
        return ((self._packed[:, clients >> 3] >> shifts) & 1).view(np.bool_)


class SparseRows:
    """The clients that are up in each round, and the rounds of each client: for rare contacts.

    Example:
        >>> rows = SparseRows([np.array([1]), np.array([0, 1])], clients=3)
        >>> rows.up(0), rows.next_contact(0, 0), rows.next_contact(2, 0)
        (array([False,  True, False]), 1, None)
    """

    def __init__(self, active: list[NDArray[np.int32]], clients: int) -> None:
        self.clients, self.rounds = clients, len(active)
        counts = np.array([len(row) for row in active])
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        self._active = np.concatenate(active).astype(np.int32, copy=False)
        order = np.argsort(self._active, kind="stable")
        self._contacts = np.bincount(self._active, minlength=clients)
        self._client_ends = np.concatenate([[0], np.cumsum(self._contacts)])
        self._rounds = np.repeat(np.arange(self.rounds, dtype=np.int32), counts)[order]

    def up(self, t: int) -> NDArray[np.bool_]:
        """Whether each client is up in round ``t``."""
        row = np.zeros(self.clients, dtype=np.bool_)
        row[self.active(t)] = True
        return row

    def active(self, t: int) -> NDArray[np.int64]:
        """The clients that are up in round ``t``, ascending."""
        return self._active[self._ends[t] : self._ends[t + 1]].astype(np.int64)

    def active_counts(self) -> NDArray[np.int64]:
        """How many clients are up in each round."""
        return np.diff(self._ends)

    def packed_rows(self) -> Iterator[NDArray[np.uint8]]:
        """Each round with a bit per client."""
        return (np.packbits(self.up(t)) for t in range(self.rounds))

    def contacts(self, count: int) -> NDArray[np.int64]:
        """In how many rounds each of the first ``count`` clients is up."""
        return self._contacts[:count].copy()

    def next_contact(self, client: int, start: int) -> int | None:
        """The first round from ``start`` on in which the client is up, or None."""
        rounds = self._rounds_of(client)
        index = int(np.searchsorted(rounds, start))
        return int(rounds[index]) if index < len(rounds) else None

    def columns(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """All rounds of some clients."""
        table = np.zeros((self.rounds, len(clients)), dtype=np.bool_)
        for k, client in enumerate(clients.tolist()):
            table[self._rounds_of(client), k] = True
        return table

    def _rounds_of(self, client: int) -> NDArray[np.int32]:
        return self._rounds[self._client_ends[client] : self._client_ends[client + 1]]


class RowWriter:
    """Stores rows one after another, in the smaller of the two ways."""

    def __init__(self, rounds: int, clients: int) -> None:
        self._rounds, self._clients, self._width = rounds, clients, -(-clients // 8)
        self._sparse: list[NDArray[np.int32]] = []
        self._sparse_bytes = self._written = 0
        self._packed: NDArray[np.uint8] | None = None
        if rounds * self._width < LARGE_BYTES:
            self._pack()

    def add(self, row: NDArray[np.bool_]) -> None:
        """Store the next row."""
        if self._packed is None:
            active = np.flatnonzero(row).astype(np.int32)
            self._sparse.append(active)
            # Each contact is in two arrays.
            self._sparse_bytes += 2 * active.nbytes
            if 2 * self._sparse_bytes > len(self._sparse) * self._width + LARGE_BYTES:
                self._pack()
        else:
            self._packed[self._written] = np.packbits(row)
        self._written += 1

    def _pack(self) -> None:
        self._packed = np.zeros((self._rounds, self._width), dtype=np.uint8)
        row = np.zeros(self._clients, dtype=np.bool_)
        for t, active in enumerate(self._sparse):
            row[:] = False
            row[active] = True
            self._packed[t] = np.packbits(row)
        self._sparse = []

    def stored(self) -> StoredRows:
        """All rows."""
        if self._packed is None:
            return SparseRows(self._sparse, self._clients)
        return PackedRows(self._packed, self._clients)
