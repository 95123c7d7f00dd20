"""Decoded pictures, kept between runs: decoding CIFAR-10 takes ten times as long as reading it.

They are in ``$FEDPBC_CACHE``, by default the folder ``fedpbc`` among the user's caches
(``$XDG_CACHE_HOME``, ``~/.cache``); an empty ``FEDPBC_CACHE`` disables it. What was decoded from
files that have changed since, or is damaged, is not used.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.removal import remove_files

__all__ = ["Pictures", "cache_folder", "cached_pictures"]

Pictures = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]
"""Pictures [N, H, W, C], their labels, and whose each is, if that is known."""

FORMAT = 1
WORTHWHILE = 2_000
"""Fewer pictures are decoded within half a second."""
MAX_BYTES = 4 << 30
"""Of all files together: those that were not used for the longest time are removed."""


def cache_folder() -> Path | None:
    """Return the folder of the cache; None if there is none."""
    name = os.environ.get("FEDPBC_CACHE")
    if name is not None:
        return Path(name).absolute() if name else None
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # Nobody's home: a service's user, say.
        return None
    return Path(caches).absolute() / "fedpbc"


def cached_pictures(
    files: Sequence[Path], settings: Sequence[object], decode: Callable[[], Pictures]
) -> Pictures:
    """Return what ``decode`` makes of these files with these settings, or made of them before."""
    folder = cache_folder()
    if folder is None:
        return decode()
    # Before they are read: what changes meanwhile must not pass for what was read.
    path = folder / f"pictures-{_key(files, settings)}.npz"
    pictures = _load(path)
    if pictures is None:
        pictures = decode()
        if len(pictures[0]) >= WORTHWHILE:
            _store(path, pictures)
    return pictures


def _key(files: Sequence[Path], settings: Sequence[object]) -> str:
    """A hash of what the pictures depend on; of a file its name, size and time of change."""
    parts = [repr((FORMAT, *settings))]
    for file in files:
        status = file.stat()
        parts.append(repr((str(file.resolve()), status.st_size, status.st_mtime_ns)))
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def _load(path: Path) -> Pictures | None:
    """Return the pictures in a file; None if it is missing or damaged."""
    try:
        # Each array has a checksum, which is verified.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            pictures = arrays["images"], arrays["labels"], arrays["clients"].tolist()
        path.touch()
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return pictures


def _store(path: Path, pictures: Pictures) -> None:
    images, labels, clients = pictures

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, images=images, labels=labels, clients=np.array(clients, dtype=str))

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The user's data may be for nobody else to read.
        write_atomically(path, write, private=True)
        _remove_oldest(path)
    except OSError:
        # A full disk, or a home that cannot be written: the next run decodes them again.
        return


def _remove_oldest(newest: Path) -> None:
    """Remove files until the others are small enough together; never the newest."""
    files = [file for file in newest.parent.glob("pictures-*.npz") if file != newest]
    total = newest.stat().st_size
    for file in sorted(files, key=lambda each: each.stat().st_mtime, reverse=True):
        total += file.stat().st_size
        if total > MAX_BYTES:
            remove_files(file.parent, [file.name])
