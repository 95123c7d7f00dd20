"""The list of files that a run, a comparison or an experiment writes into its directory.

It is written first, into a directory without other files. So whatever it lists may be removed when
the directory is overwritten, and whatever it does not list belongs to the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_own_file

__all__ = [
    "MANIFEST",
    "add_checksums",
    "changed_files",
    "checksummed_files",
    "has_checksums",
    "is_folder_name",
    "is_inside",
    "read_manifest",
    "replace_checksummed",
    "write_manifest",
]

MANIFEST = "fedpbc-manifest.json"
LARGEST = 1 << 40
"""Bytes of a file with a checksum: a trace or a timetable may be as large as its writer liked."""


def write_manifest(
    folder: Path, kind: str, files: Iterable[str], checksums: Mapping[str, str] | None = None
) -> None:
    """Write down which files belong to the run (or comparison, …) in a folder.

    ``checksums`` are those of files that do not change.
    """
    content: dict[str, Any] = {"fedpbc": kind, "files": sorted(files)}
    if checksums is not None:
        content["checksums"] = dict(checksums)
    write_atomically(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def read_manifest(folder: Path, kind: str) -> Sequence[str] | None:
    """The files that a folder's manifest lists, or None if it has none of this kind."""
    content = _read(folder, kind)
    if content is None:
        return None
    return [file for file in content["files"] if is_inside(folder, file)]


def changed_files(folder: Path, kind: str) -> list[str]:
    """The files that are not those whose checksums a folder's manifest has."""
    content = _read(folder, kind)
    checksums = None if content is None else content.get("checksums")
    if not isinstance(checksums, dict):
        return []  # Earlier versions wrote none.
    return [name for name, known in checksums.items() if _checksum(folder, name) != known]


def add_checksums(folder: Path, kind: str, files: Iterable[str]) -> None:
    """Add the checksums of files as they are now to a folder's manifest."""
    content = _read(folder, kind)
    if content is None:
        return
    checksums = content.get("checksums")
    known = dict(checksums) if isinstance(checksums, dict) else {}
    known |= {name: _checksum(folder, name) for name in files}
    write_manifest(folder, kind, content["files"], known)


def replace_checksummed(folder: Path, kind: str, name: str, text: str) -> None:
    """Replace a file and its checksum.

    Without its checksum first: a kill in between must not make the file look damaged.
    """
    content = _read(folder, kind)
    if content is not None and isinstance(known := content.get("checksums"), dict):
        others = {file: checksum for file, checksum in known.items() if file != name}
        write_manifest(folder, kind, content["files"], others)
    write_atomically(folder / name, text)
    add_checksums(folder, kind, [name])


def has_checksums(folder: Path, kind: str, files: Iterable[str]) -> bool:
    """Whether a folder's manifest has the checksums of all these files."""
    return set(files) <= {*checksummed_files(folder, kind)}


def checksummed_files(folder: Path, kind: str) -> list[str]:
    """The files whose checksums a folder's manifest has."""
    content = _read(folder, kind)
    checksums = None if content is None else content.get("checksums")
    return list(checksums) if isinstance(checksums, dict) else []


def _checksum(folder: Path, name: str) -> str:
    try:
        return sha256(read_own_file(folder, name, LARGEST)).hexdigest()
    except OSError:
        return ""


def _read(folder: Path, kind: str) -> dict[str, Any] | None:
    try:
        content = parse_json(read_own_file(folder, MANIFEST, 1 << 24))
        valid = content["fedpbc"] == kind and all(
            isinstance(file, str) for file in content["files"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if valid and isinstance(content, dict) else None


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
