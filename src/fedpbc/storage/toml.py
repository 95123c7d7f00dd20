"""TOML files, read without torch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError

__all__ = ["parsed_toml"]


def parsed_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content as it stands there."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("configuration", str(path), "a file that exists") from None
    except OSError as error:
        raise InputError(f"configuration: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"configuration: {path} is not valid TOML: {error}") from None
