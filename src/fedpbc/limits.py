"""The bounds on values from outside: numbers, depth, length and characters.

Everything that people or files give passes here before anything else looks at it: TOML, JSON,
``--set`` and the arguments of Python calls.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from typing import Any

from fedpbc.errors import InputError

__all__ = ["MAX_DEPTH", "MAX_INTEGER", "MAX_TEXT", "check_values", "parse_json", "parse_toml"]

MAX_INTEGER = 2**63 - 1
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
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                check_text(key, f"a name in {option}" if option else "a name")
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

    try:
        return json.loads(text, parse_float=finite, parse_constant=finite)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document, within the bounds; whatever is wrong is a ValueError of one line."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    check_values(values)
    return values
