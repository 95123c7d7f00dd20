"""Folders of a fleet that are built aside and then renamed: a kill leaves none half-written."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fedpbc.deployment.ops.consent import INCOMPLETE
from fedpbc.errors import FedpbcError
from fedpbc.storage.atomic import naming_errors, sync_folder, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import is_own_file, read_own_file
from fedpbc.storage.removal import remove_empty_folder, remove_entries, remove_tree

__all__ = ["atomic_folder", "remove_incomplete", "write_file"]

FLEET_ENTRY = re.compile(r"authority|server|device-[0-9]+|init\.toml|README\.md")
"""What is directly in a fleet's folder."""


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file of a folder that is built aside; errors name it."""
    with naming_errors(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``folder`` on success and else removed.

    Of a process that was killed it stays, and is removed by the next.
    """
    make_directory(folder.parent)
    target = folder.resolve()
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        remove_unused(left)
    building = target.with_name(f".{target.name}.{uuid4().hex[:8]}.tmp")
    # Private until the secrets in it have their own modes.
    building.mkdir(mode=0o700)
    try:
        with locked_directory(building):
            yield building
            with naming_errors(folder):
                sync_tree(building)
                remove_entries(building, [LOCK])
                if folder.exists():
                    move_into(building, folder)
                else:
                    building.chmod(0o755)
                    rename_or_not(building, folder)
    finally:
        remove_tree(building, ignore_errors=True)


def rename_or_not(building: Path, folder: Path) -> None:
    """Rename a folder, or leave it as it was if the disk cannot keep that."""
    building.rename(folder)
    try:
        sync_folder(folder.resolve().parent)
    except OSError:
        folder.rename(building)
        raise


def remove_unused(building: Path) -> None:
    """Remove the temporary folder of a process that was killed."""
    if building.is_symlink() or not building.is_dir():
        return
    try:
        with locked_directory(building):
            remove_tree(building, ignore_errors=True)
    except (FedpbcError, OSError):
        return  # Another process is building there.


def sync_tree(folder: Path) -> None:
    """Sync all files below a folder to disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            path = Path(parent, name)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def move_into(building: Path, folder: Path) -> None:
    """Move everything into an existing folder, which may be a shell's working directory.

    A list of what belongs there comes first and goes last: with it, the fleet is incomplete.
    """
    # The options last: without them, no other command takes the folder for a fleet.
    last = ("init.toml", "README.md")
    names = sorted((path.name for path in building.iterdir()), key=lambda n: (n in last, n))
    write_atomically(folder / INCOMPLETE, "".join(f"{name}\n" for name in names))
    for name in names:
        (building / name).rename(folder / name)
    sync_folder(folder)
    remove_entries(folder, [INCOMPLETE])
    remove_empty_folder(building)


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted ``fleet init`` has moved into a folder, and nothing else."""
    if not is_own_file(folder, INCOMPLETE):
        return
    names = read_own_file(folder, INCOMPLETE, 1 << 24).decode(errors="replace").splitlines()
    for name in names:
        path = folder / name
        if not FLEET_ENTRY.fullmatch(name) or path.is_symlink():
            continue
        if path.is_dir():
            remove_tree(path)
        else:
            remove_entries(folder, [name])
    remove_entries(folder, [INCOMPLETE])
