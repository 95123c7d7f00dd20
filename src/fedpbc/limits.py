"""The bounds on values from outside: numbers, depth, length and characters.

Everything that people or files give passes here before anything else looks at it: TOML, JSON,
``--set`` and the arguments of Python calls.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedpbc.errors import InputError

if TYPE_CHECKING:  # The command line starts without NumPy.
    from numpy.typing import NDArray

__all__ = [
    "MAX_CLIENTS",
    "MAX_DEPTH",
    "MAX_INTEGER",
    "MAX_LOCAL_STEPS",
    "MAX_ROUNDS",
    "MAX_SECONDS",
    "MAX_TEXT",
    "MAX_WORKERS",
    "array_of",
    "check_encodable",
    "check_path",
    "check_text",
    "check_values",
    "memory_bytes",
    "numbers_of",
    "parse_json",
    "parse_toml",
]

MAX_INTEGER = 2**63 - 1
MAX_ROUNDS = 1_000_000
MAX_CLIENTS = 10_000_000
MAX_LOCAL_STEPS = 1_000_000
MAX_WORKERS = 4096
"""Processes: more would exhaust a machine before anything is said."""
MAX_SECONDS = 1e12
"""A length of time: 30,000 years, and far from where a sum of two overflows."""
MAX_TEXT = 4096
"""Characters of a text or a name: as long as a path may be."""
MAX_DEPTH = 20
"""Tables within tables."""


def check_values(value: Any, option: str = "", depth: int = 0) -> None:
    """Raise InputError unless ``value`` is made of bounded numbers, texts, lists and tables.

    ``option`` is the name that messages use. Objects of other types, which only Python can give,
    pass: whoever takes them checks them.

    Example:
        >>> check_values({"links": {"gamma": float("inf")}})
        Traceback (most recent call last):
        fedpbc.errors.InputError: links.gamma is inf, but should be a finite number
    """
    if depth > MAX_DEPTH:
        raise InputError(f"{option or 'the value'} nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            given = value if value.bit_length() < 512 else f"of {value.bit_length()} bits"
            raise InputError(option, given, f"a number from {-MAX_INTEGER - 1} to {MAX_INTEGER}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(option, value, "a finite number")
    elif isinstance(value, str):
        check_text(value, option)
    elif isinstance(value, datetime.date | datetime.time):
        raise InputError(option, str(value), "a number or a text: no setting is a date or a time")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"a name in {option}" if option else "a name"
            if not isinstance(key, str):
                raise InputError(where, key, "a text")
            check_text(key, where)
            check_values(inner, f"{option}.{key}" if option else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_values(inner, option, depth + 1)


def check_text(text: str, option: str) -> None:
    """Raise InputError for a text that is too long or has characters that no option needs."""
    if len(text) > MAX_TEXT:
        raise InputError(f"{option} has {len(text):,} characters, but at most {MAX_TEXT:,} fit")
    if "\0" in text:
        raise InputError(option, text, "a text without NUL characters")


def check_path(path: object, option: str) -> None:
    """Raise InputError unless this names a file or a folder: a text, or an object of pathlib."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise InputError(option, path, "a path")
    check_text(str(path), option)


def check_encodable(values: Mapping[str, Any], option: str = "") -> None:
    """Raise InputError if a text cannot be written to a file: a name of bytes that are no UTF-8."""
    for key, value in values.items():
        name = f"{option}.{key}" if option else str(key)
        if isinstance(value, Mapping):
            check_encodable(value, name)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise InputError(name, text, "a text in UTF-8") from None


def memory_bytes() -> int:
    """How much memory this machine has; unknown: as much as may be."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows.
        return MAX_INTEGER


def array_of(name: str, value: Any) -> NDArray[Any]:
    """An array of finite numbers; anything else is an InputError.

    Example:
        >>> array_of("targets", [[1.0], [2.0, 3.0]])
        Traceback (most recent call last):
        fedpbc.errors.InputError: targets is ragged or not numeric: give an array of numbers
    """
    import numpy as np

    array = numbers_of(name, value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} is of type {array.dtype}, but should be an array of numbers")
    if not np.isfinite(array).all():
        raise InputError(f"{name} is not finite everywhere")
    return array


def numbers_of(name: str, value: Any) -> NDArray[Any]:
    """An array of whatever type; what cannot be one is an InputError."""
    import numpy as np

    try:
        return np.asarray(value)
    except Exception:  # Whatever an object does when it is converted.
        raise InputError(f"{name} is ragged or not numeric: give an array of numbers") from None


def parse_json(text: str | bytes) -> Any:
    """A JSON value with finite numbers; whatever is wrong is a ValueError of one line.

    Example:
        >>> parse_json("[1, 1e999]")
        Traceback (most recent call last):
        ValueError: 1e999 is not a finite number
    """

    def finite(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(f"{digits[:40]} is not a finite number")
        return value

    with _one_line_errors():
        return json.loads(text, parse_float=finite, parse_constant=finite)


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document, within the bounds; whatever is wrong is a ValueError of one line."""
    with _one_line_errors():
        values = tomllib.loads(text)
    check_values(values)
    return values


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Say what is wrong with a text where Python's own words are about Python."""
    try:
        yield
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):
            raise ValueError("a number in it has thousands of digits") from None
        raise
