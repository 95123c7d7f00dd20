"""Each client's last report, for the view ``reported``: in memory, or in a file.

In the file every report has a slot. A checkpoint only records which client's report is in which
slot, so slots that a checkpoint refers to are not overwritten while it exists. A run that resumes
from it finds its reports unchanged, whatever was written since.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.errors import FedpbcError, InputError
from fedpbc.simulation.report_slots import MAX_KEY, FreeSlots, Slot, SlotIndex, chosen

__all__ = ["DamagedReportsError", "LastReports", "LastReportsOnDisk", "choose_last_reports"]

FILE = "reports.bin"
"""The file's name in a run's directory."""


class DamagedReportsError(FedpbcError):
    """Reports that cannot be read back as they were written."""


def choose_last_reports(where: str, path: Path | None = None) -> LastReports:
    """The reports for the option ``reported``; on disk they are in a file at ``path``, if given."""
    if where not in ("memory", "disk"):
        raise InputError("reported", where, "'memory' or 'disk'")
    return LastReportsOnDisk(path) if where == "disk" else LastReports(path)


def report_key(client: int, first_clients: int) -> int:
    """Under which number a client's last report is kept.

    Those of the clients that were there in round 0 come first, then their differences to the moving
    average. Of who joined later both come behind all, side by side.

    Example:
        >>> [report_key(i, 3) for i in range(5)], [difference_key(i, 3) for i in range(5)]
        ([0, 1, 2, 6, 8], [3, 4, 5, 7, 9])
    """
    return client if client < first_clients else 2 * client


def difference_key(client: int, first_clients: int) -> int:
    """The same for the difference of that report to the moving average."""
    return first_clients + client if client < first_clients else 2 * client + 1


class LastReports:
    """The clients' last reports, in this process's memory.

    The reports of a round count once it is committed: a round that fails leaves no trace. ``path``
    is the file that an earlier process may have stored them in.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        # By client: the model, or where it is stored.
        self._current: dict[int, Any] = {}
        self._arrived: dict[int, Any] = {}

    def put(self, client: int, model: Tensor) -> None:
        """Add a report of the current round."""
        self._arrived[client] = model

    def commit(self) -> None:
        """End the round: its reports replace older ones."""
        self._current.update(self._arrived)
        self._arrived = {}

    def discard(self) -> None:
        """Forget the reports of a round that failed."""
        self._arrived = {}

    def items(self, clients: Collection[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """Each client, or each of these, and its last report, ascending; one at a time is read."""
        for client in sorted(self._current):
            if clients is None or client in clients:
                yield client, self._load(client, self._current[client])

    def _load(self, client: int, stored: Any) -> Tensor:
        model: Tensor = stored
        return model

    def __len__(self) -> int:
        return len(self._current)

    def count(self, clients: Collection[int]) -> int:
        """How many of these clients have a report."""
        return sum(client in clients for client in self._current)

    def state(self) -> dict[Any, Any]:
        """What a checkpoint holds; files that it refers to are synced to disk."""
        return dict(self._current)

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Continue from a state of either kind; raises DamagedReportsError if reports are lost."""
        if not is_index(state) or not state["slots"]:
            # An index of no reports needs no file.
            self._current = {} if is_index(state) else dict(state)
            return
        if self._path is None:
            raise FedpbcError("the last reports of this run are on disk: resume it in its folder")
        with closing(LastReportsOnDisk(self._path)) as on_disk:
            on_disk.restore(state)
            self._current = dict(on_disk.items())

    def protect(self, states: Iterable[Mapping[Any, Any]]) -> None:
        """Do not overwrite what these states, and no others, refer to."""

    def move(self, path: Path) -> None:
        """Go on with the file at another path, to which it was moved."""
        self._path = path

    def close(self) -> None:
        """Close the file, if there is one."""


class LastReportsOnDisk(LastReports):
    """The clients' last reports in a file, which is created when it is needed.

    Without a path the file has no name, and is gone when it is closed or the process ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self._file = SlotFile(path)
        self._type: tuple[torch.dtype, torch.Size] | None = None
        self._index = SlotIndex()
        self._arrived: dict[int, Slot] = {}
        # Slots that checkpoints refer to, ascending.
        self._protected = np.zeros(0, dtype=np.int64)
        self._free = FreeSlots()

    def put(self, client: int, model: Tensor) -> None:
        """Write a report of the current round into a free slot."""
        kind = model.dtype, model.shape
        if self._type not in (None, kind):
            raise FedpbcError(
                f"client {client} reports {kind}, others {self._type}: on disk all reports "
                "must have the same type and shape"
            )
        self._type = kind
        content = bytes_of(model.detach().cpu().clone(memory_format=torch.contiguous_format))
        number = self._free.take()
        try:
            self._file.write(number, content)
        except BaseException:
            self._free.release(number)
            raise
        self._arrived[client] = Slot(number, crc32(content))

    def commit(self) -> None:
        """End the round; the slots of older reports become free."""
        replaced = [slot for client in self._arrived if (slot := self._index.get(client))]
        for client, slot in self._arrived.items():
            self._index.put(client, slot)
        self._arrived = {}
        self._release(replaced)

    def discard(self) -> None:
        """Forget the reports of a round that failed, and free their slots."""
        self._release(self._arrived.values())
        super().discard()

    def _release(self, slots: Iterable[Slot]) -> None:
        for number in {slot.number for slot in slots}:
            index = int(np.searchsorted(self._protected, number))
            if index == len(self._protected) or self._protected[index] != number:
                self._free.release(number)

    def items(self, clients: Collection[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        """Each client, or each of these, and its last report, ascending; one at a time is read."""
        for client in chosen(self._index.keys(), clients).tolist():
            slot = self._index.get(client)
            assert slot is not None
            yield client, self._load(client, slot)

    def __len__(self) -> int:
        return len(self._index.keys())

    def count(self, clients: Collection[int]) -> int:
        """How many of these clients have a report."""
        return len(chosen(self._index.keys(), clients))

    def _load(self, client: int, stored: Slot) -> Tensor:
        assert self._type is not None
        dtype, shape = self._type
        model = torch.empty(shape, dtype=dtype)
        content = bytes_of(model)
        if not self._file.read_into(content, stored.number) or crc32(content) != stored.checksum:
            raise DamagedReportsError(
                f"{self._file.name} is damaged: client {client}'s report is not what was written"
            )
        return model

    def state(self) -> dict[Any, Any]:
        """The slot of each client's report, once the file is synced to disk."""
        self._file.sync()
        dtype, shape = self._type or (None, ())
        clients = self._index.keys()
        numbers, checksums = self._index.slots(clients)
        return {
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(shape),
            "clients": clients.tolist(),
            "slots": numbers.tolist(),
            "checksums": checksums.tolist(),
        }

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Continue from a state of either kind, after reading every report once."""
        self._index, self._arrived, self._type = SlotIndex(), {}, None
        self._free = FreeSlots(self._protected)
        if not is_index(state):
            for client, model in state.items():
                self.put(client, model)
            self.commit()
            return
        slots = map(Slot, state["slots"], state["checksums"])
        if state["slots"]:
            self._type = getattr(torch, state["dtype"]), torch.Size(state["shape"])
        index = SlotIndex()
        for client, slot in zip(state["clients"], slots, strict=True):
            self._load(client, slot)
            if not 0 <= client < MAX_KEY:
                raise DamagedReportsError(f"{self._file.name} has no report of client {client}")
            index.put(client, slot)
        self._index = index
        self._free = FreeSlots(np.union1d(self._protected, self._numbers()))

    def _numbers(self) -> NDArray[np.int64]:
        """The slots of all reports."""
        arrived = [slot.number for slot in self._arrived.values()]
        current, _ = self._index.slots(self._index.keys())
        return np.append(current, np.array(arrived, dtype=np.int64))

    def protect(self, states: Iterable[Mapping[Any, Any]]) -> None:
        """Do not reuse the slots that these states, and no others, refer to."""
        slots = [self._slots_of(state) for state in states if is_index(state)]
        self._protected = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *slots]))
        self._free = FreeSlots(np.union1d(self._protected, self._numbers()))

    def _slots_of(self, state: Mapping[Any, Any]) -> NDArray[np.int64]:
        """The slots of the file that a state refers to; one that is damaged may claim any."""
        try:
            report_bytes: int = getattr(torch, state["dtype"]).itemsize * math.prod(state["shape"])
            available = self._file.size() // report_bytes
            slots: NDArray[np.int64] = np.asarray(state["slots"], dtype=np.int64)
            return slots[(slots >= 0) & (slots < available)]
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            return np.zeros(0, dtype=np.int64)

    def move(self, path: Path) -> None:
        """Go on with the file at another path, to which it was moved."""
        super().move(path)
        self._file.move(path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def is_index(state: Any) -> bool:
    """Whether a state refers to slots of a file; otherwise it holds the models themselves."""
    return isinstance(state, Mapping) and isinstance(state.get("slots"), list)


def bytes_of(model: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return model.reshape(-1).view(torch.uint8).numpy().data


class SlotFile:
    """A file of equal slots, opened when it is first used.

    It is read and written, not mapped: a mapping would count as this process's memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._opened: FileIO | None = None
        self.name = "the temporary file of reports" if path is None else str(path)

    def write(self, slot: int, content: memoryview) -> None:
        """Write a slot; a full disk is one clear line."""
        try:
            file = self._open()
            file.seek(slot * len(content))
            while content:
                content = content[file.write(content) :]
        except OSError as error:
            raise self._unwritten(error) from error

    def read_into(self, content: memoryview, slot: int) -> bool:
        """Read a slot into a buffer of its size; returns whether the file has it."""
        if self._path is not None and not self._path.is_file():
            raise FedpbcError(f"{self.name} is missing: put it back, or start the run again")
        try:
            file = self._open()
            file.seek(slot * len(content))
            while content and (count := file.readinto(content)):
                content = content[count:]
        except OSError as error:
            raise DamagedReportsError(f"{self.name} cannot be read: {error.strerror}") from error
        return not content

    def size(self) -> int:
        """The bytes of the file; 0 if there is none."""
        if self._opened is not None:
            return os.fstat(self._opened.fileno()).st_size
        is_there = self._path is not None and self._path.is_file()
        return self._path.stat().st_size if is_there and self._path is not None else 0

    def sync(self) -> None:
        """Sync the file to disk; creates it if nothing was written."""
        try:
            os.fsync(self._open().fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def move(self, path: Path) -> None:
        """The file was moved to another path; it stays open."""
        self._path, self.name = path, str(path)

    def close(self) -> None:
        """Close the file; one with a name can be used again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open(self) -> FileIO:
        if self._opened is None:
            if self._path is None:
                self._opened = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 it stays open
            else:
                # Not through a link: whoever sent the folder may have put one there.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
                self._opened = FileIO(os.open(self._path, flags, 0o666), "r+b")
        return self._opened

    def _unwritten(self, error: OSError) -> FedpbcError:
        return FedpbcError(f"{self.name} cannot be written: {error.strerror}")
