"""Read images and labels from Parquet files in the Hugging Face hub's layout."""

from __future__ import annotations

import importlib
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.errors import InputError, MissingExtraError

__all__ = [
    "check_place",
    "check_rows",
    "find_shards",
    "open_table",
    "picture",
    "picture_shape",
    "read_images",
    "refuse_null",
    "wrong",
]

# Large enough to amortise the cost of a task, small enough to keep all cores busy until the end.
_ROWS_PER_TASK = 500


MAX_ROWS = 10**8
MAX_GROUP_BYTES = 1 << 33
"""Of a row group, unpacked: a few kilobytes in the file may stand for terabytes."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Pillow would start other programs for some of the others."""


def find_shards(folder: Path, split: str, root: Path | None = None) -> list[Path]:
    """Return the files of one split in order: train-00000-of-00002.parquet, …

    Links are followed inside ``root`` only, or as in the hub's cache: from ``snapshots`` to the
    ``blobs`` of the same repository.
    """
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files and (folder / split).is_dir():
        # As the hub converts repositories of other formats: train/0000.parquet, …
        files = sorted((folder / split).glob("*.parquet"))
    for file in files:
        check_place(file, folder if root is None else root)
    matches = [re.match(rf"{split}-(\d+)-of-(\d+)\b", file.name) for file in files]
    numbers = [(int(match[1]), int(match[2])) for match in matches if match]
    # An interrupted download must not pass for a smaller data set, nor two versions for one.
    # As many as there are, not as many as a name says: that may be any number.
    if numbers and numbers != [(k, len(numbers)) for k in range(len(numbers))]:
        names = ", ".join(file.name for file in files)
        raise InputError(
            f"data.dir: {folder} has {names}; "
            f"it should have every {split} file of one version, 00000 to the last"
        )
    return files


def check_place(file: Path, root: Path) -> None:
    """Raise unless a file is a regular one inside ``root``, or in the hub's cache."""
    try:
        target, allowed = file.resolve(strict=True), [root.resolve()]
        mode = target.stat().st_mode
    except (OSError, RuntimeError) as error:
        raise _unreadable(file, error) from None
    # In the hub's cache: REPOSITORY/snapshots/REVISION/… and REPOSITORY/blobs/…
    parts = file.parent.resolve().parts
    if "snapshots" in parts:
        repository = Path(*parts[: len(parts) - 1 - parts[::-1].index("snapshots")])
        allowed.append(repository / "blobs")
    if not any(target.is_relative_to(folder) for folder in allowed):
        raise InputError(
            f"data.dir: {file} is a link out of the folder, which is not followed: "
            f"name the folder of {target} instead"
        )
    if not stat.S_ISREG(mode):
        raise _unreadable(file, OSError("it is not a regular file"))


def read_images(
    files: Sequence[Path],
    column: str,
    shape: tuple[int, int, int],
    classes: int,
    label: str = "label",
    client: str = "",
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    """Read all images, uint8 [N, H, W, C], and labels of these files, in order.

    With a column of clients' names, also whose each image is; else an empty list.
    """
    expected = f"the columns {column} (images) and {label} (integers)"
    if client:
        expected = f"the columns {column} (images), {label} (integers) and {client} (texts)"
    names = [column, label, *([client] if client else [])]
    tables = [(file, open_table(file, names, expected)) for file in files]
    for file, table in tables:
        _check_types(file, table.schema_arrow, column, label, expected)
    total = check_rows(files[0], sum(table.metadata.num_rows for _, table in tables))
    images = np.empty((total, *shape), dtype=np.uint8)
    labels = np.empty(total, dtype=np.int64)
    clients: list[str] = []

    def decode(file: Path, row: int, offset: int, encoded: list[bytes]) -> None:
        for k, image in enumerate(encoded):
            images[offset + k] = picture(file, row + k, image, shape)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks: list[Future[None]] = []
        offset = 0
        for file, table in tables:
            row, count = 0, table.metadata.num_rows
            columns = [f"{column}.bytes", label, *([client] if client else [])]
            for rows in _batches(file, table, columns):
                if row + len(rows) > count:
                    row += len(rows)
                    break
                labels[offset : offset + len(rows)] = _labels(
                    file, row, rows.column(label), classes
                )
                encoded = rows.column(column).field("bytes")
                refuse_null(file, row, encoded, "image", "the bytes of every image")
                if client:
                    refuse_null(file, row, rows.column(client), client, "whose every image is")
                    clients += map(str, rows.column(client).to_pylist())
                tasks.append(pool.submit(decode, file, row, offset, encoded.to_pylist()))
                row += len(rows)
                offset += len(rows)
            if row != count:
                rows_read = f"{row:,} rows{' or more' if row > count else ''}"
                raise wrong(file, f"{rows_read}, but its header says {count:,}", f"{count:,}")
        for task in tasks:
            task.result()
    return images, labels, clients


def open_table(file: Path, columns: Sequence[str], expected: str) -> Any:
    """Open a Parquet file that has these columns, once each, and no row group beyond all bounds."""
    try:
        for module in ("pyarrow", "pyarrow.parquet", "PIL", "PIL.Image"):
            importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError("reading Parquet files", "hub") from error
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        schema = table.schema_arrow
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _unreadable(file, error) from error
    if any(column not in schema.names for column in columns):
        raise wrong(file, f"the columns {', '.join(schema.names)}", expected)
    for k in range(table.metadata.num_row_groups):
        if table.metadata.row_group(k).total_byte_size > MAX_GROUP_BYTES:
            raise wrong(file, "a row group that is too large", f"at most {MAX_GROUP_BYTES:,} bytes")
    if any(schema.names.count(column) > 1 for column in columns):
        raise wrong(file, "a column twice", expected)
    return table


def check_rows(file: Path, total: int) -> int:
    """Return the number of rows, if that many can be read."""
    if not 0 <= total <= MAX_ROWS:
        raise wrong(file, f"{total:,} rows", f"at most {MAX_ROWS:,}")
    return total


def _check_types(file: Path, schema: Any, column: str, label: str, expected: str) -> None:
    import pyarrow as pa

    image_type, label_type = schema.field(column).type, schema.field(label).type
    if not (pa.types.is_struct(image_type) and image_type.get_field_index("bytes") >= 0):
        raise wrong(file, f"{image_type} in its column {column}", expected)
    if not pa.types.is_integer(label_type):
        raise wrong(file, f"{label_type} in its column {label}", expected)


def _batches(file: Path, table: Any, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from table.iter_batches(_ROWS_PER_TASK, columns=list(columns))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _unreadable(file, error) from error


def _labels(file: Path, row: int, column: Any, classes: int) -> npt.NDArray[np.int64]:
    expected = f"labels from 0 to {classes - 1}"
    refuse_null(file, row, column, "label", expected)
    labels = column.to_numpy(zero_copy_only=False)
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        raise wrong(file, f"label {labels[outside[0]]} in row {row + outside[0]}", expected)
    return np.asarray(labels, dtype=np.int64)


def picture(
    file: Path, row: int, encoded: bytes, shape: tuple[int, int, int]
) -> npt.NDArray[np.uint8]:
    """Decode one image: greyscale for one channel, RGB for three; another size is an error."""
    from PIL import Image

    height, width, channels = shape
    expected = f"images of {width}x{height} pixels"
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            size = image.size
            # Check the size before decoding the pixels, however many there are.
            pixels = (
                image.convert("L" if channels == 1 else "RGB") if size == (width, height) else None
            )
    except Exception as error:  # Pillow's decoders raise many types of errors
        raise wrong(file, f"a damaged image in row {row}", expected) from error
    if pixels is None:
        raise wrong(file, f"an image of {size[0]}x{size[1]} pixels in row {row}", expected)
    return np.asarray(pixels).reshape(shape)


def picture_shape(file: Path, encoded: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of an encoded image: one channel if it is greyscale."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            channels = 1 if image.mode in ("1", "L") else 3
            return image.size[1], image.size[0], channels
    except Exception as error:  # Pillow's decoders raise many types of errors
        raise wrong(file, "a damaged image in row 0", "images") from error


def refuse_null(file: Path, row: int, column: Any, what: str, expected: str) -> None:
    """Raise if a value is missing; ``row`` is the number of the first."""
    if column.null_count:
        missing = row + column.is_null().to_pylist().index(True)
        raise wrong(file, f"no {what} in row {missing}", expected)


def wrong(file: Path, problem: str, expected: str) -> InputError:
    """Return the error for a file that has something else than it should have."""
    return InputError(f"data.dir: {file} has {problem}; it should have {expected}")


def _unreadable(file: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"data.dir: {file} is unreadable ({reason}): download it again")
