"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_atomically"]

# The only way to read it is to set it.
UMASK = os.umask(0o022)
os.umask(UMASK)


def write_atomically(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file beside its place, make sure it is on disk, and only then rename it.

    ``content`` may be a function that writes to the path it is given.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "a.txt"
        >>> write_atomically(place, "whole")
        >>> place.read_text()
        'whole'
    """
    # The name says whose it is: two processes never write to the same temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if callable(content):
            content(temporary)
        else:
            data = content.encode() if isinstance(content, str) else content
            temporary.write_bytes(data)
        # Some writers make files that only their owner may read.
        temporary.chmod(0o666 & ~UMASK)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last."""
    if os.name == "nt":  # Windows cannot open folders.
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
