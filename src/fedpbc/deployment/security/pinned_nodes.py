"""``nodes.json`` in a server's folder: which node is which client, by the keys that it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_own_file

__all__ = ["PINNED_NODES", "DamagedPinsError", "clients_before", "read_pinned", "write_pinned"]

PINNED_NODES = "nodes.json"
LARGEST = 1 << 26
"""Bytes."""


class DamagedPinsError(ValueError):
    """The file has another content than a launcher writes."""


def write_pinned(folder: Path, pinned: Mapping[int, int] | None) -> None:
    """Write the client of each node; None for a fleet without keys."""
    write_atomically(folder / PINNED_NODES, json.dumps({"pinned": pinned}))


def read_pinned(folder: Path) -> dict[int, int] | None:
    """Read what was written; a DamagedPinsError or an OSError if that is impossible.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as name:
        ...     write_pinned(Path(name), {5: 1})
        ...     read_pinned(Path(name))
        {5: 1}
    """
    try:
        clients = parse_json(read_own_file(folder, PINNED_NODES, LARGEST))["pinned"]
        return None if clients is None else {int(n): int(c) for n, c in clients.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedPinsError(str(error)) from None


def clients_before(folder: Path) -> dict[int, int]:
    """The client of each node when a server last ran here; nothing if that is not known."""
    try:
        return read_pinned(folder) or {}
    except (OSError, DamagedPinsError):
        return {}
