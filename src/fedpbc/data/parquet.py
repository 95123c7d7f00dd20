"""Reads pictures and labels from Parquet files as the Hugging Face hub lays them out."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.data.png import PictureError, decode
from fedpbc.errors import InputError, MissingExtraError, Verbatim

__all__ = ["find_shards", "read_pictures"]

# Large enough to share the cost of a call, small enough to keep the cores busy until the end.
_ROWS_AT_ONCE = 500


def find_shards(folder: Path, split: str) -> list[Path]:
    """The files of one split, in order, such as train-00000-of-00002.parquet and its brother.

    Example:
        >>> find_shards(Path("/nowhere"), "train")
        []
    """
    files = sorted(folder.glob(f"{split}-*.parquet"))
    numbers = [re.match(rf"{split}-(\d+)-of-(\d+)\b", file.name) for file in files]
    found = [(int(number[1]), int(number[2])) for number in numbers if number]
    # A download that broke off must not pass for a smaller data set, nor two versions for one.
    if found and found != [(k, found[0][1]) for k in range(found[0][1])]:
        shown = ", ".join(file.name for file in files)
        raise InputError(
            "data.dir",
            Verbatim(f"{folder} with {shown}"),
            f"a folder with every {split} file of one version, 00000 to the last",
        )
    return files


def read_pictures(
    files: Sequence[Path], column: str, shape: tuple[int, int, int], classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All pictures, uint8 [N, H, W, C], and labels of these files, one after the other.

    Example:
        >>> inputs, labels = read_pictures([], "img", (32, 32, 3), classes=10)
        >>> inputs.shape, labels.shape
        ((0, 32, 32, 3), (0,))
    """
    try:
        for needed in ("pyarrow", "pyarrow.parquet", "PIL", "PIL.Image"):
            importlib.import_module(needed)
    except ImportError as error:
        raise MissingExtraError("reading Parquet files", "hub") from error

    opened = [(file, _opened(file, column)) for file in files]
    total = sum(parquet.metadata.num_rows for _, parquet in opened)
    inputs = np.empty((total, *shape), dtype=np.uint8)
    labels = np.empty(total, dtype=np.int64)

    def decode_rows(file: Path, row: int, at: int, pictures: list[bytes]) -> None:
        try:
            inputs[at : at + len(pictures)] = decode(pictures, shape)
        except PictureError as error:
            right = f"a file of pictures of {shape[1]}x{shape[0]} pixels"
            raise _wrong(file, f"with {error.what} in row {row + error.position}", right) from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs: list[Future[None]] = []
        at = 0
        for file, parquet in opened:
            row = 0
            for rows in _batches(file, parquet, column):
                pictures = rows.column(column).field("bytes")
                labels[at : at + len(rows)] = _labels(file, row, rows.column("label"), classes)
                if pictures.null_count:
                    missing = row + pictures.is_null().to_pylist().index(True)
                    right = "a file with the bytes of every picture"
                    raise _wrong(file, f"with no picture in row {missing}", right)
                jobs.append(pool.submit(decode_rows, file, row, at, pictures.to_pylist()))
                row += len(rows)
                at += len(rows)
        for job in jobs:
            job.result()
    return inputs, labels


def _opened(file: Path, column: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    schema = parquet.schema_arrow
    right = f"a file with the columns {column} (pictures) and label (integers)"
    if column not in schema.names or "label" not in schema.names:
        raise _wrong(file, f"with the columns {', '.join(schema.names)}", right)
    kind = schema.field(column).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise _wrong(file, f"with {kind} in its column {column}", right)
    if not pa.types.is_integer(schema.field("label").type):
        raise _wrong(file, f"with {schema.field('label').type} in its column label", right)
    return parquet


def _batches(file: Path, parquet: Any, column: str) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from parquet.iter_batches(_ROWS_AT_ONCE, columns=[f"{column}.bytes", "label"])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error


def _labels(file: Path, row: int, column: Any, classes: int) -> npt.NDArray[np.int64]:
    right = f"a file with labels from 0 to {classes - 1}"
    if column.null_count:
        missing = row + column.is_null().to_pylist().index(True)
        raise _wrong(file, f"with no label in row {missing}", right)
    labels = column.to_numpy(zero_copy_only=False)
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        raise _wrong(file, f"with label {labels[outside[0]]} in row {row + outside[0]}", right)
    return np.asarray(labels, dtype=np.int64)


def _wrong(file: Path, what: str, right: str) -> InputError:
    return InputError("data.dir", Verbatim(f"{file} {what}"), right)


def _damaged(file: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return _wrong(file, f"(unreadable: {reason})", "an undamaged Parquet file: fetch it again")
