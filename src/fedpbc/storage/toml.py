"""TOML files, read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.limits import parse_toml
from fedpbc.storage.files import read_regular_file

__all__ = ["parsed_toml"]

MAX_BYTES = 1 << 26
"""Room for a probability for each of a million clients."""


def parsed_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content as it stands there, within the bounds."""
    try:
        return parse_toml(read_regular_file(path, MAX_BYTES).decode())
    except FileNotFoundError:
        raise InputError("configuration", str(path), "a file that exists") from None
    except OSError as error:
        raise InputError(f"configuration: {path} cannot be read: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"configuration: {path}: {error}") from None
    except ValueError as error:
        raise InputError(f"configuration: {path} is not valid TOML: {error}") from None
