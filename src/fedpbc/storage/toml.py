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
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"configuration: {path} is unreadable as TOML ({error})") from None
