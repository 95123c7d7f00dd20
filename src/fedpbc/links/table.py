"""Links from a file: an explicit timetable of 0 and 1, rounds x clients."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.choices import InputFile
from fedpbc.errors import InputError
from fedpbc.links.scheme import Row, Setting, link_scheme
from fedpbc.storage.arrays import check_npy_header
from fedpbc.storage.files import expanded, open_regular_file

__all__ = ["table"]


@link_scheme
def table(setting: Setting, *, file: InputFile) -> Iterator[Row]:
    """Your own timetable: a file of 0 and 1, one row per round, one column per client.

    ``file`` is an ``.npy`` array or a CSV without a header. Rows beyond the run's rounds are not
    used. Both formats are read row by row, so a table may be larger than memory.
    """
    option, size = f"{setting.option}.file", f"{setting.rounds} rows of {setting.clients} 0s or 1s"
    path = expanded(file, option)
    rows = _npy_rows(path) if path.suffix == ".npy" else _csv_rows(path, setting.clients)
    for t in range(setting.rounds):
        try:
            row = next(rows, None)
        except OSError as error:
            raise InputError(option, file, f"a file that can be read: {error.strerror}") from None
        except WrongShapeError as error:
            raise InputError(option, file, f"{size}: {error}") from None
        except Exception:  # NumPy raises many types of errors for damaged files.
            raise InputError(option, file, f"{size}: row {t} is damaged") from None
        if row is None:
            raise InputError(option, file, f"{size}: it has {t} rows")
        if len(row) != setting.clients:
            raise InputError(option, file, f"{size}: row {t} has {len(row)} columns")
        up = row == 1
        if not (up | (row == 0)).all():
            raise InputError(option, file, f"{size}: row {t} holds another value")
        yield up


class WrongShapeError(ValueError):
    """A readable file that is not a table of numbers."""


def _npy_rows(path: Path) -> Iterator[NDArray[Any]]:
    with open_regular_file(path) as content:
        check_npy_header(content)
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise WrongShapeError(f"it holds {array.dtype} of shape {array.shape}")
    # Copies: a row must not keep the file mapped.
    yield from map(np.array, array)


def _csv_rows(path: Path, clients: int) -> Iterator[NDArray[Any]]:
    # A damaged file can be one line without end.
    longest = 64 * clients + 1000
    with (
        open_regular_file(path) as content,
        io.TextIOWrapper(content, encoding="utf-8-sig") as lines,
    ):
        while raw := lines.readline(longest + 1):
            line = raw.strip()
            if len(raw) > longest:
                raise WrongShapeError(f"a line has more than {longest:,} characters")
            if not line:
                continue
            characters = np.frombuffer(line.encode(), dtype=np.uint8)
            if len(line) % 2 and (characters[1::2] == ord(",")).all():
                # Single digits and commas: a hundred times faster than parsing numbers.
                yield characters[::2] - np.uint8(ord("0"))
            else:
                numbers = line.lower().replace("true", "1").replace("false", "0")
                yield np.loadtxt([numbers], delimiter=",", ndmin=1)
