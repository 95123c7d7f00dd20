"""Whether the job of a server's folder is finished, and whether its results are as written.

Imports no torch.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from fedpbc.limits import parse_json
from fedpbc.storage.files import open_regular_file, read_own_file

__all__ = ["FINISHED", "damaged_results", "file_checksum", "rounds_finished"]

FINISHED = "finished.json"
SMALL_FILE = 1 << 26
"""Bytes: more than the files have that are read whole."""
WRONG_CONTENT = (KeyError, TypeError, ValueError, AttributeError)


def rounds_finished(folder: Path) -> int:
    """Return how many rounds the finished job of a folder has; 0 if none is finished."""
    try:
        rounds = parse_json(read_own_file(folder, FINISHED, SMALL_FILE))["rounds"]
        return rounds if isinstance(rounds, int) else 0
    except (OSError, *WRONG_CONTENT):
        return 0


def damaged_results(folder: Path) -> list[str]:
    """Return which results of a finished job are missing or not as they were written."""
    try:
        files = parse_json(read_own_file(folder, FINISHED, SMALL_FILE)).get("files", {})
        return [name for name, before in files.items() if checksum_of(folder, name) != before]
    except (OSError, *WRONG_CONTENT):
        return [FINISHED]


def checksum_of(folder: Path, name: str) -> str:
    """Return the checksum of a folder's file; that of a missing one is empty."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        return ""
    try:
        return file_checksum(folder / name)
    except OSError:
        return ""


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file; links are not followed."""
    digest = sha256()
    with open_regular_file(path, follow_links=False) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
