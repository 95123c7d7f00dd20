"""TOML files, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.errors import InputError
from fedpbc.limits import parse_toml
from fedpbc.storage.files import read_regular_file

__all__ = ["parsed_toml", "toml_text"]

MAX_BYTES = 1 << 26
"""Room for a probability for each of a million clients."""


def parsed_toml(path: Path, *, follow_links: bool = True) -> dict[str, Any]:
    """A TOML file's content as it stands there, within the bounds."""
    try:
        return parse_toml(read_regular_file(path, MAX_BYTES, follow_links=follow_links).decode())
    except FileNotFoundError:
        raise InputError("configuration", str(path), "a file that exists") from None
    except OSError as error:
        raise InputError(f"configuration: {path} cannot be read: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"configuration: {path}: {error}") from None
    except ValueError as error:
        raise InputError(f"configuration: {path} is not valid TOML: {error}") from None


def toml_text(values: Mapping[str, Any], option: str = "") -> str:
    """Values as TOML; one that cannot be written, such as a plugin's default, is an InputError.

    Example:
        >>> toml_text({"links": {"gamma": object}})
        Traceback (most recent call last):
        fedpbc.errors.InputError: links.gamma is a type: only numbers, texts, lists and tables can \
be kept with a run
    """
    try:
        return tomli_w.dumps(values)
    except TypeError:
        for key, value in values.items():
            name = f"{option}.{key}" if option else str(key)
            if isinstance(value, Mapping):
                toml_text(value, name)
            else:
                _check_kept(name, value)
        raise


def _check_kept(name: str, value: Any) -> None:
    try:
        tomli_w.dumps({"value": value})
    except TypeError:
        raise InputError(
            f"{name} is a {type(value).__name__}: only numbers, texts, lists and tables can be "
            "kept with a run"
        ) from None
