"""Columns of Parquet and CSV files, whatever they hold: pictures, texts or numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpbc.data.hub import split_files
from fedpbc.data.parquet import (
    check_place,
    check_rows,
    open_table,
    picture,
    picture_shape,
    refuse_null,
    wrong,
)
from fedpbc.errors import InputError, MissingExtraError

__all__ = ["find_table", "is_picture", "is_text", "numbers", "pictures", "read_columns"]

SUFFIXES = (".parquet", ".csv")
MAX_CSV_BYTES = 1 << 33


def find_table(root: Path, repository: str, config: str | None, split: str) -> list[Path]:
    """Return the files of a split: of a folder in the hub's layout, or the one file itself.

    A folder without files of that split may have a single CSV or Parquet file instead.
    """
    if root.is_file():
        if root.suffix not in SUFFIXES:
            raise InputError("data.dir", str(root), "a folder, or a .parquet or .csv file")
        return [root]
    try:
        return split_files(root, repository, config, [split], "files")[split]
    except InputError:
        if not root.is_dir():
            raise
        for folder in (root / repository, root) if repository else (root,):
            single = sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES)
            named = [path for path in single if path.stem == split]
            if len(named or single) == 1:
                check_place((named or single)[0], root)
                return named or single
        raise


def read_columns(
    files: Sequence[Path], names: Sequence[str], expected: str, *, texts: bool = False
) -> dict[str, Any]:
    """Return columns of these files, one after another, as arrays of Arrow.

    ``texts``: columns of a CSV file are texts, even if they look like numbers.
    """
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for file in files:
        table = _csv(file, names, expected, texts) if file.suffix == ".csv" else None
        if table is None:
            table = _parquet(file, names, expected)
        for name in names:
            refuse_null(file, 0, table.column(name), f"{name}", "a value in every row")
            parts[name].append(table.column(name))
    import pyarrow as pa

    columns = {}
    for name, chunks in parts.items():
        kinds = {str(chunk.type) for chunk in chunks}
        if len(kinds) > 1:
            raise wrong(
                files[-1], f"{' and '.join(sorted(kinds))} in its column {name}", "one type"
            )
        columns[name] = pa.chunked_array([c for chunk in chunks for c in chunk.chunks])
    return columns


def _parquet(file: Path, names: Sequence[str], expected: str) -> Any:
    import pyarrow as pa

    table = open_table(file, names, expected)
    check_rows(file, table.metadata.num_rows)
    try:
        return table.read(columns=list(names))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _unreadable(file, error) from error


def _csv(file: Path, names: Sequence[str], expected: str, texts: bool) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError as error:
        raise MissingExtraError("reading CSV files", "hub") from error

    try:
        if file.stat().st_size > MAX_CSV_BYTES:
            raise wrong(file, f"more than {MAX_CSV_BYTES:,} bytes", "fewer")
        with file.open("rb") as stream:
            head = csv.open_csv(stream, parse_options=csv.ParseOptions(newlines_in_values=True))
            columns = head.schema.names
            if any(columns.count(name) != 1 for name in names):
                raise wrong(file, f"the columns {', '.join(columns)}", expected)
        kinds = dict.fromkeys(names, pa.string()) if texts else {}
        convert = csv.ConvertOptions(
            include_columns=list(names), column_types=kinds, strings_can_be_null=False
        )
        parse = csv.ParseOptions(newlines_in_values=True)
        return csv.read_csv(file, parse_options=parse, convert_options=convert)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(file, error) from error


def is_picture(column: Any) -> bool:
    """Whether a column holds encoded pictures, as the hub stores them."""
    import pyarrow as pa

    kind = column.type
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0) or bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )


def is_text(column: Any) -> bool:
    """Whether a column holds texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def pictures(file: Path, name: str, column: Any) -> npt.NDArray[np.uint8]:
    """Decode a column of pictures, all of the size and colours of the first: [N, H, W, C]."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        chunks = [chunk.field("bytes") for chunk in column.chunks]
        column = pa.chunked_array(chunks)
    refuse_null(file, 0, column, f"bytes in {name}", "the bytes of every picture")
    encoded = column.to_pylist()
    shape = picture_shape(file, encoded[0])
    images = np.empty((len(encoded), *shape), dtype=np.uint8)

    def decode(first: int) -> None:
        for k in range(first, min(first + 500, len(encoded))):
            images[k] = picture(file, k, encoded[k], shape)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(decode, range(0, len(encoded), 500)))
    return images


def numbers(file: Path, name: str, column: Any) -> npt.NDArray[np.float64]:
    """Return a column of numbers, or of lists of as many numbers in every row: [N, F]."""
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_list = is_list or pa.types.is_fixed_size_list(kind)
    value = kind.value_type if is_list else kind
    if not (
        pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)
    ):
        raise wrong(file, f"{kind} in its column {name}", "pictures, texts or numbers")
    if not is_list:
        values = np.asarray(column.to_numpy(), dtype=np.float64).reshape(-1, 1)
    else:
        rows = column.to_pylist()
        widths = {len(row) for row in rows}
        if len(widths) != 1 or any(v is None for row in rows for v in row):
            raise wrong(file, f"lists of several lengths in its column {name}", "one length")
        values = np.asarray(rows, dtype=np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise wrong(file, f"a number in row {row} of {name} that is not finite", "finite numbers")
    return values


def _unreadable(file: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"data.dir: {file} is unreadable ({reason}): download it again")
