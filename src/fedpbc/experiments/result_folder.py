"""Whether results may be written to a folder: never among files that are not ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpbc.errors import InputError
from fedpbc.storage.atomic import temporary_names
from fedpbc.storage.directories import LOCK
from fedpbc.storage.manifest import MANIFEST
from fedpbc.storage.removal import own_files

__all__ = ["LEFTOVERS", "check_result_folder"]

LEFTOVERS = (LOCK, temporary_names(MANIFEST))
"""What a command leaves in a new folder that is killed before its first file."""


def check_result_folder(path: Path, is_ours: Callable[[], bool], hint: str = "") -> None:
    """Raise InputError unless the path is free, an empty folder, or one of ours.

    ``is_ours`` is only called if the folder holds something; ``hint`` follows "other files".
    """
    if path.exists() and not path.is_dir():
        raise InputError("out", str(path), "a folder; this is a file")
    entries = set(path.iterdir()) if path.is_dir() else set()
    if entries - set(own_files(path, LEFTOVERS)) and not is_ours():
        raise InputError(f"out: {path} holds other files{hint}; choose a new or empty folder")
