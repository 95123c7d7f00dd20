"""Directories for results: making them, and locking them against other processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.files import open_regular_file

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LOCK",
    "MAX_FOLDERS",
    "folders_below",
    "is_locked",
    "locked_directory",
    "make_directory",
]

LOCK = ".lock"
MAX_FOLDERS = 20_000
"""Folders in which runs are looked for: a whole file system has more, and would take minutes."""

MAX_DEPTH = 200
"""Folders within folders that are made: pathlib makes them by recursion."""


def folders_below(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """A folder and those below it, each with its folders and files; links are not followed.

    As for ``os.walk``, what is removed from the list of folders is not visited. Raises InputError
    for a folder with so many that nobody can have meant it.
    """
    for count, (name, folders, files) in enumerate(os.walk(folder)):
        if count == MAX_FOLDERS:
            expected = f"one with fewer than {MAX_FOLDERS:,} folders below it; name the runs' own"
            raise InputError("folder", str(folder), expected)
        folders.sort()
        yield Path(name), folders, files


def make_directory(path: Path) -> None:
    """Make a directory for results, and its parents."""
    if len(path.parts) > MAX_DEPTH:
        raise InputError("out", str(path), f"a folder within at most {MAX_DEPTH} others")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {path} cannot be made ({error.strerror})") from None


def is_locked(path: Path, name: str = LOCK) -> bool:
    """Whether a process holds a directory's lock; for a moment, nobody else can take it."""
    try:
        file = open_regular_file(path / name, follow_links=False)
    except OSError:
        return False
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


@contextmanager
def locked_directory(path: Path, name: str = LOCK, patience: float = 0.0) -> Iterator[None]:
    """Hold a directory's lock; the lock of a killed process is released by the system.

    Processes that work together in a directory take locks of other names. Whoever looks whether
    a lock is taken has it for a moment: with ``patience``, it is tried for so many seconds.
    """
    # Neither truncated nor through a link: whoever sent the directory may have put one there.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    lock = path / name
    if lock.is_symlink():
        raise InputError(f"{lock} is a link, which is not followed: remove it")
    try:
        handle = os.open(lock, flags, 0o666)
    except IsADirectoryError:
        raise InputError(f"{lock} is not a regular file: remove it") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{lock} is not a regular file: remove it")
        if fcntl is not None:
            deadline = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        raise FedpbcError(f"{path} is in use by another process") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
