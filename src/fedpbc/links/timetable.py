"""The timetable of a run: who is up in which round, drawn before training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import islice, repeat
from types import MappingProxyType
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike, NDArray

from fedpbc.errors import InputError
from fedpbc.limits import memory_bytes, numbers_of
from fedpbc.links.scheme import LinkScheme, Probabilities, Row, Rows, Setting, find_scheme
from fedpbc.links.stored_rows import PackedRows, RowWriter, SparseRows, StoredRows
from fedpbc.options import check_arguments, check_kind, check_type, checked

__all__ = ["Timetable", "from_table"]


class Timetable:
    """Whose link is up in which round; created by :meth:`draw` or :func:`from_table`.

    Eight clients share a byte: a million clients over 10,000 rounds take 1.25 GB, or less where few
    links are up: then only those are stored.

    Attributes:
        clients: m.
        rounds: T.
        base_probabilities: p_i, if the scheme uses them; for display only.
        independent: whether links are known to be independent of each other and of other rounds.

    Example:
        >>> timetable = from_table([[1, 0], [1, 1]])
        >>> timetable.up(0), timetable.active(1), timetable.shares()
        (array([ True, False]), array([0, 1]), array([1. , 0.5]))
        >>> timetable.next_contact(1, after=-1), timetable.next_contact(1, after=1)
        (1, None)
    """

    def __init__(
        self,
        packed: NDArray[np.uint8] | StoredRows,
        clients: int,
        rerun: Callable[[], Rows] | None = None,
        base: Probabilities | None = None,
        independent: bool = False,
    ) -> None:
        check_type("clients", clients, Annotated[int, Ge(1)])
        if isinstance(packed, PackedRows | SparseRows):
            self._rows: StoredRows = packed
        elif (
            not isinstance(packed, np.ndarray)
            or packed.dtype != np.uint8
            or packed.ndim != 2
            or packed.shape[1] != -(-clients // 8)
        ):
            raise InputError(
                f"packed is not a uint8 array of rounds × clients/8 for {clients} clients: "
                "use Timetable.draw or from_table"
            )
        else:
            self._rows = PackedRows(packed, clients)
        self.clients, self.rounds = clients, self._rows.rounds
        self.base_probabilities = base
        self.independent = independent
        # Yields (row, p) again; None for schemes that yield no probabilities.
        self._rerun = rerun

    @classmethod
    def draw(
        cls,
        scheme: LinkScheme | str,
        setting: Setting,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> Timetable:
        """Run a scheme for all rounds; wrong options, rows or probabilities are an InputError.

        Example:
            >>> from fedpbc.links import Setting
            >>> setting = Setting(seed=1, clients=2, rounds=9, base_probabilities=[0.5, 1.0])
            >>> Timetable.draw("cyclic", setting, {"cycle": 3}).shares()[1]
            np.float64(1.0)
        """
        check_kind("setting", setting, Setting, "a Setting")
        check_kind("options", options, Mapping, "a table of options")
        if not isinstance(scheme, LinkScheme):
            scheme = find_scheme(scheme, setting.option)
        recorder = _RecordingSetting(**vars(setting))
        run = partial(scheme.rows, recorder, **checked(scheme.rows, options, setting.option))
        name = f"{setting.option} {scheme.name}"
        # Not left to NumPy: the system promises more memory than it has.
        if setting.rounds * setting.clients // 8 > memory_bytes():
            reason = f"a timetable of {setting.clients} clients would not fit into memory"
            raise InputError("rounds", setting.rounds, f"fewer: {reason}")
        written = RowWriter(setting.rounds, setting.clients)
        drawn, with_p = 0, 0
        rows: object = run()  # A plugin may return anything.
        if not isinstance(rows, Iterable):
            kind = type(rows).__name__
            raise InputError(f"{name} returns a {kind}, but should yield one row per round")
        for t, item in enumerate(islice(rows, setting.rounds)):
            row, p = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
            _check_array(f"{name}: row {t}", row, setting.clients, np.bool_)
            if p is not None:
                with_p += 1
                _check_array(f"{name}: p of round {t}", p, setting.clients, np.float64)
                # The condition is also false for NaN.
                if not (p.min() >= 0 and p.max() <= 1):
                    raise InputError(f"{name}: p of round {t} must be from 0 to 1")
            written.add(row)
            drawn = t + 1
        if drawn < setting.rounds:
            raise InputError(
                f"{name} yields {drawn} rows, but should yield {setting.rounds}, one per round"
            )
        if with_p not in (0, drawn):
            raise InputError(
                f"{name} yields rows with and without probabilities, "
                "but should yield them in every round or in none"
            )
        base = setting.base_probabilities if recorder.reads else None
        if not with_p:
            return cls(written.stored(), setting.clients, base=base)
        return cls(written.stored(), setting.clients, run, base, scheme.independent)

    def up(self, t: int) -> Row:
        """Whether each client's link is up in round ``t``."""
        _check_index("round", t, self.rounds)
        return self._rows.up(t)

    def active(self, t: int) -> NDArray[np.int64]:
        """The clients whose link is up in round ``t``, ascending: the paper's A^t."""
        _check_index("round", t, self.rounds)
        return self._rows.active(t)

    def next_contact(self, client: int, after: int) -> int | None:
        """The first round after ``after`` in which the client's link is up, or None."""
        _check_index("client", client, self.clients)
        if not isinstance(after, int | np.integer):
            raise InputError("after", after, "a round")
        return self._rows.next_contact(client, max(0, after + 1))

    def fingerprint(self) -> str:
        """A hash of all rounds, by which a resumed run detects that its links changed."""
        digest = sha256()
        for row in self._rows.packed_rows():
            digest.update(np.ascontiguousarray(row).data)
        return digest.hexdigest()

    @check_arguments
    def shares(self, clients: Annotated[int, Ge(0)] | None = None) -> NDArray[np.float64]:
        """The share of rounds in which each client, or each of the first ``clients``, is up."""
        count = self.clients if clients is None else min(clients, self.clients)
        return self._rows.contacts(count) / self.rounds

    @check_arguments
    def block(
        self, rounds: Annotated[int, Ge(0)], clients: Annotated[int, Ge(0)]
    ) -> NDArray[np.bool_]:
        """The first rounds of the first clients, or as many as there are."""
        count = min(clients, self.clients)
        rows = islice(self._rows.packed_rows(), rounds)
        table = [np.unpackbits(row[: -(-count // 8)], count=count) for row in rows]
        return np.array(table, dtype=np.uint8).reshape(len(table), count).view(np.bool_)

    def active_counts(self) -> NDArray[np.int64]:
        """How many clients are up in each round.

        Example:
            >>> from_table([[1, 0], [1, 1]]).active_counts()
            array([1, 2])
        """
        return self._rows.active_counts()

    def columns(self, clients: ArrayLike) -> NDArray[np.bool_]:
        """All rounds of the given clients, rounds x clients.

        Example:
            >>> from_table([[1, 0, 0], [0, 1, 1]]).columns([2, 0])
            array([[False,  True],
                   [ True, False]])
        """
        numbers = np.asarray(clients, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.clients:
            raise InputError("clients", numbers.tolist(), f"from 0 to {self.clients - 1}")
        return self._rows.columns(numbers)

    @check_arguments
    def probabilities(self, start: Annotated[int, Ge(0)] = 0) -> Iterator[Probabilities]:
        """p_i^t for t = start, start + 1, …: what ``fedavg_known`` divides by.

        These are what the scheme yields, or each client's share of active rounds if it yields none
        (``table``, ``trace``). Not stored: the scheme runs again alongside the round loop."""
        if self._rerun is None:
            yield from repeat(self.shares(), self.rounds - start)
        else:
            for item in islice(self._rerun(), start, self.rounds):
                yield item[1]

    def within(self, first: ArrayLike, end: ArrayLike) -> Timetable:
        """The same links, but down for each client before a round, and from another one on.

        Example:
            >>> from_table([[1, 1], [1, 1], [1, 1]]).within([0, 1], [3, 2]).block(3, 2).astype(int)
            array([[1, 0],
                   [1, 1],
                   [1, 0]])
        """
        t = np.arange(self.rounds)[:, None]
        rows = self.block(self.rounds, self.clients) & (t >= np.asarray(first))
        packed = np.packbits(rows & (t < np.asarray(end)), axis=1)
        base, independent = self.base_probabilities, self.independent
        return Timetable(packed, self.clients, self._rerun, base, independent)

    def lowest_probabilities(self) -> Probabilities:
        """The smallest p_i^t of each client; computed by running the scheme again."""
        lowest = np.ones(self.clients)
        for p in self.probabilities():
            np.minimum(lowest, p, out=lowest)
        return lowest


def from_table(table: ArrayLike) -> Timetable:
    """A timetable from an array of rounds x clients, of bools or of 0 and 1."""
    rows = numbers_of("the table", table)
    if rows.ndim != 2 or 0 in rows.shape:
        raise InputError(
            f"the table has shape {rows.shape}, but should be rounds x clients, at least 1 x 1"
        )
    if not np.isin(rows, (0, 1)).all():
        raise InputError("the table has values other than 0 and 1")
    return Timetable(np.packbits(rows.astype(np.bool_), axis=1), rows.shape[1])


@dataclass(frozen=True, eq=False)
class _RecordingSetting(Setting):
    """A setting that records whether the scheme reads p."""

    reads: set[str] = field(default_factory=set)

    @property
    def p(self) -> Probabilities:
        self.reads.add("p")
        return super().p


def _check_index(name: str, value: object, count: int) -> None:
    if not isinstance(value, int | np.integer) or not 0 <= value < count:
        raise InputError(name, value, f"from 0 to {count - 1}")


def _check_array(name: str, array: object, clients: int, kind: type[np.generic]) -> None:
    """Raise unless ``array`` has one value of that kind per client."""
    actual = f"a {type(array).__name__}"
    if isinstance(array, np.ndarray):
        if array.shape == (clients,) and array.dtype == kind:
            return
        actual = f"a {array.dtype} array of shape {array.shape}"
    expected = f"a {np.dtype(kind)} array of shape ({clients},)"
    raise InputError(f"{name} is {actual}, but should be {expected}")
