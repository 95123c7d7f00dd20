"""The one place that removes files and folders.

Of a directory for results only regular files that lie in it are removed, or a link itself: a link,
or a name that leads out of it, may have been put there by whoever sent the directory.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedpbc.storage.atomic import naming_errors
from fedpbc.storage.files import is_own_file

__all__ = ["own_files", "remove_empty_folder", "remove_entries", "remove_files", "remove_tree"]


def own_files(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """The files of a folder with these names, relative to it; ``*`` stands for anything."""
    for name in names:
        pattern = folder / name
        if "*" in pattern.name:
            escaped = glob.escape(pattern.name).replace("[*]", "*")
            paths = sorted(pattern.parent.glob(escaped))
        else:
            paths = [pattern]
        for path in paths:
            if is_own_file(folder, str(path.relative_to(folder))):
                yield path


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of a folder with these names, in this order."""
    for path in own_files(folder, names):
        path.unlink(missing_ok=True)


def remove_entries(folder: Path, names: Iterable[str]) -> None:
    """Remove entries of a folder with exactly these names: files, or links that stand there.

    Where a link leads nothing changes; folders stay.
    """
    for name in names:
        path = folder / name
        if path.parent == folder and (path.is_symlink() or not path.is_dir()):
            path.unlink(missing_ok=True)


def remove_tree(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder that we made, with everything in it; what links lead to stays."""
    if not folder.is_symlink():
        # It knows the files by their names alone.
        with naming_errors(folder):
            shutil.rmtree(folder, ignore_errors=ignore_errors)


def remove_empty_folder(folder: Path) -> None:
    """Remove a folder if there is nothing in it; a link to one stays."""
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()
