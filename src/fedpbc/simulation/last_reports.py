"""What each client reported last, for the view ``reported``: in memory, or in a file.

In a file every report has a slot. A checkpoint holds only which client's report is in which slot,
so a slot that a checkpoint refers to is not written to for as long as the checkpoint is there.
Whoever resumes from it finds everything as it was, whatever was written since.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import torch
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError

__all__ = [
    "DamagedReportsError",
    "LastReports",
    "LastReportsInMemory",
    "LastReportsOnDisk",
    "choose_last_reports",
]

FILE = "reports.bin"
"""What it is called in a run's folder."""


class DamagedReportsError(FedpbcError):
    """Reports that cannot be read back as they were written."""


class LastReports(Protocol):
    """Where each client's last report is kept.

    What arrives in a round counts from :meth:`keep` on: a round that fails leaves no trace.
    """

    def put(self, client: int, model: Tensor) -> None:
        """Take a report of the round under way."""

    def keep(self) -> None:
        """The round is over: what arrived in it is from now on what was reported last."""

    def forget(self) -> None:
        """The round failed: what arrived in it never did."""

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Each client's last report, one after another, in the order of the clients."""

    def __len__(self) -> int:
        """How many clients have reported."""

    def state(self) -> dict[Any, Any]:
        """What a checkpoint holds of it. Whatever it refers to is on disk, and lasts if spared."""

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Go to where a state was taken; raises DamagedReportsError if its reports are not whole.

        The state may have been taken by the other kind.
        """

    def spare(self, states: Iterable[Mapping[Any, Any]]) -> None:
        """Leave alone what these states refer to, and nothing else: they are in checkpoints."""

    def close(self) -> None:
        """Let go of the file, if there is one."""


def choose_last_reports(where: str, path: Path | None = None) -> LastReports:
    """Where the option ``reported`` says: «memory», or «disk», in a run's file if it has one.

    Example:
        >>> len(choose_last_reports("memory"))
        0
    """
    if where not in ("memory", "disk"):
        raise InputError("reported", where, "'memory' or 'disk'")
    return LastReportsOnDisk(path) if where == "disk" else LastReportsInMemory(path)


class LastReportsInMemory:
    """A model for each client, in this process.

    Args:
        path: the file that an earlier process may have kept them in.

    Example:
        >>> reports = LastReportsInMemory()
        >>> reports.put(3, torch.ones(2))
        >>> reports.keep()
        >>> [client for client, model in reports.items()]
        [3]
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept: dict[int, Tensor] = {}
        self._arrived: dict[int, Tensor] = {}

    def put(self, client: int, model: Tensor) -> None:
        """Take a report of the round under way."""
        self._arrived[client] = model

    def keep(self) -> None:
        """What arrived is what was reported last."""
        self._kept.update(self._arrived)
        self._arrived = {}

    def forget(self) -> None:
        """What arrived never did."""
        self._arrived = {}

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Each client's last report, in the order of the clients."""
        for client in sorted(self._kept):
            yield client, self._kept[client]

    def __len__(self) -> int:
        return len(self._kept)

    def state(self) -> dict[Any, Any]:
        """The reports themselves."""
        return dict(self._kept)

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Take back the reports, from a file if that is where they are."""
        if not is_index(state) or not state["slots"]:
            # An index of no reports needs no file.
            self._kept = {} if is_index(state) else dict(state)
            return
        if self._path is None:
            raise FedpbcError("the last reports of this run are on disk: resume it in its folder")
        with closing(LastReportsOnDisk(self._path)) as on_disk:
            on_disk.restore(state)
            self._kept = dict(on_disk.items())

    def spare(self, states: Iterable[Mapping[Any, Any]]) -> None:
        """Nothing is ever written over here."""

    def close(self) -> None:
        """There is no file."""


class Place(NamedTuple):
    """Where a report is, and the checksum of its bytes."""

    slot: int
    checksum: int


class LastReportsOnDisk:
    """A slot in a file for each client: in memory there is no more than one report at a time.

    Args:
        path: the file, made when it is needed; None: one without a name, gone when it is closed or
            the process ends.

    Example:
        >>> with closing(LastReportsOnDisk()) as reports:
        ...     for round in (1.0, 2.0):
        ...         reports.put(3, torch.full((2,), round))
        ...         reports.keep()
        ...     dict(reports.items())
        {3: tensor([2., 2.])}
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file = SlotFile(path)
        self._kept: dict[int, Place] = {}
        self._arrived: dict[int, Place] = {}
        self._like: tuple[torch.dtype, torch.Size] | None = None
        # Slots that checkpoints refer to, and all that are not free.
        self._spared: set[int] = set()
        self._used: set[int] = set()
        # No slot below is free.
        self._lowest = 0

    def put(self, client: int, model: Tensor) -> None:
        """Write a report of the round under way into a free slot."""
        like = model.dtype, model.shape
        if self._like not in (None, like):
            raise FedpbcError(
                f"client {client} reports {like}, others {self._like}: on disk all are alike"
            )
        self._like = like
        while self._lowest in self._used:
            self._lowest += 1
        slot = self._lowest
        content = bytes_of(model.detach().cpu().clone(memory_format=torch.contiguous_format))
        self._file.write(slot, content)
        self._used.add(slot)
        self._arrived[client] = Place(slot, crc32(content))

    def keep(self) -> None:
        """What arrived is what was reported last; the slots of older reports become free."""
        older = [self._kept[client] for client in self._arrived if client in self._kept]
        self._kept.update(self._arrived)
        self._arrived = {}
        self._free(older)

    def forget(self) -> None:
        """What arrived never did."""
        self._free(self._arrived.values())
        self._arrived = {}

    def _free(self, places: Iterable[Place]) -> None:
        for slot in {place.slot for place in places} - self._spared:
            self._used.discard(slot)
            self._lowest = min(self._lowest, slot)

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Each client's last report, in the order of the clients, read when it is asked for."""
        for client in sorted(self._kept):
            yield client, self._read(client, self._kept[client])

    def _read(self, client: int, place: Place) -> Tensor:
        assert self._like is not None
        dtype, shape = self._like
        model = torch.empty(shape, dtype=dtype)
        content = bytes_of(model)
        if not self._file.read_into(content, place.slot) or crc32(content) != place.checksum:
            raise DamagedReportsError(
                f"{self._file.name} is damaged: client {client}'s report is not what was written"
            )
        return model

    def __len__(self) -> int:
        return len(self._kept)

    def state(self) -> dict[Any, Any]:
        """Which slot each client's report is in; the file is on disk when this returns."""
        self._file.sync()
        dtype, shape = self._like or (None, ())
        return {
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(shape),
            "clients": list(self._kept),
            "slots": [place.slot for place in self._kept.values()],
            "checksums": [place.checksum for place in self._kept.values()],
        }

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Take back which slot is whose, once all of them are found whole."""
        self._kept, self._arrived, self._like = {}, {}, None
        self._used, self._lowest = set(self._spared), 0
        if not is_index(state):
            for client, model in state.items():
                self.put(client, model)
            self.keep()
            return
        places = map(Place, state["slots"], state["checksums"])
        kept = dict(zip(state["clients"], places, strict=True))
        if kept:
            self._like = getattr(torch, state["dtype"]), torch.Size(state["shape"])
        for client, place in kept.items():
            self._read(client, place)
        self._kept = kept
        self._used.update(state["slots"])

    def spare(self, states: Iterable[Mapping[Any, Any]]) -> None:
        """Leave the slots alone that these states refer to; others may be used again."""
        self._spared = {slot for state in states if is_index(state) for slot in state["slots"]}
        own = {place.slot for places in (self._kept, self._arrived) for place in places.values()}
        self._used, self._lowest = self._spared | own, 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def is_index(state: Any) -> bool:
    """Whether a state only says where in a file the reports are; otherwise it has a model each."""
    return isinstance(state, Mapping) and isinstance(state.get("slots"), list)


def bytes_of(model: Tensor) -> memoryview:
    """The bytes of a tensor that lies in one piece, without a copy."""
    return model.reshape(-1).view(torch.uint8).numpy().data


class SlotFile:
    """A file of equal pieces, opened when it is first used.

    Plain reads and writes: a mapping of the file would count as this process's memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._opened: FileIO | None = None
        self.name = "the temporary file of reports" if path is None else str(path)

    def write(self, slot: int, content: memoryview) -> None:
        """Write a piece; a full disk is one clear line."""
        try:
            file = self._open()
            file.seek(slot * len(content))
            while content:
                content = content[file.write(content) :]
        except OSError as error:
            raise self._unwritten(error) from error

    def read_into(self, content: memoryview, slot: int) -> bool:
        """Read a piece into a buffer of its size; tells whether the file has it."""
        if self._path is not None and not self._path.is_file():
            raise FedpbcError(f"{self.name} is missing: put it back, or begin the run anew")
        try:
            file = self._open()
            file.seek(slot * len(content))
            while content and (count := file.readinto(content)):
                content = content[count:]
        except OSError as error:
            raise DamagedReportsError(f"{self.name} cannot be read: {error.strerror}") from error
        return not content

    def sync(self) -> None:
        """Make sure that all that was written is on disk, and that there is a file."""
        try:
            os.fsync(self._open().fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Close it; it can be used again if it has a name."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open(self) -> FileIO:
        if self._opened is None:
            if self._path is None:
                self._opened = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 it stays open
            else:
                self._path.touch()
                self._opened = self._path.open("r+b", buffering=0)
        return self._opened

    def _unwritten(self, error: OSError) -> FedpbcError:
        return FedpbcError(f"{self.name} cannot be written: {error.strerror}")
