"""The list of files that a run, a comparison or an experiment writes into its directory.

It is written first, into a directory without other files. So whatever it lists may be removed when
the directory is overwritten, and whatever it does not list belongs to the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_own_file

__all__ = ["MANIFEST", "is_folder_name", "is_inside", "read_manifest", "write_manifest"]

MANIFEST = "fedpbc-manifest.json"


def write_manifest(folder: Path, kind: str, files: Iterable[str]) -> None:
    """Write down which files belong to the run (or comparison, …) in a folder."""
    text = json.dumps({"fedpbc": kind, "files": sorted(files)}, indent=2)
    write_atomically(folder / MANIFEST, text + "\n")


def read_manifest(folder: Path, kind: str) -> Sequence[str] | None:
    """The files that a folder's manifest lists, or None if it has none of this kind."""
    try:
        content = parse_json(read_own_file(folder, MANIFEST, 1 << 24))
        files = content["files"]
        if content["fedpbc"] != kind or not all(isinstance(file, str) for file in files):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [file for file in files if is_inside(folder, file)]


def is_inside(folder: Path, name: str) -> bool:
    """Whether a relative name stays in its folder, without links on the way.

    Example:
        >>> is_inside(Path("runs"), "fedavg/seed-0"), is_inside(Path("runs"), "../mine/seed-0")
        (True, False)
    """
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or "\0" in name or ".." in path.parts:
        return False
    parents = [folder / parent for parent in path.parents if parent.parts]
    return not any(parent.is_symlink() for parent in [*parents, folder / path])


def is_folder_name(name: str) -> bool:
    """Whether a name can be that of a folder for results, on its own.

    Example:
        >>> is_folder_name("fedau"), is_folder_name("../mine"), is_folder_name(".hidden")
        (True, False, False)
    """
    hidden = name.startswith(".") or name != name.strip()
    return (
        0 < len(name.encode(errors="replace")) <= 200 and not hidden and not set(name) & {*"/\\\0"}
    )
