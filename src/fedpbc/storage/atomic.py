"""Atomic file writes: a reader, or a later process, finds the old content or the new."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = ["naming_errors", "sync_folder", "temporary_names", "write_atomically"]

# The only way to read the umask is to set it.
UMASK = os.umask(0o022)
os.umask(UMASK)


def write_atomically(
    path: Path, content: bytes | str | Callable[[Path], None], *, private: bool = False
) -> None:
    """Write a temporary file, sync it to disk, and only then rename it.

    ``content`` may be a function that writes to the path it is called with. A private file is
    readable by its owner only, from its first byte on.
    """
    # The process id keeps two processes from writing to the same temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with naming_errors(path):
        if fcntl is not None:
            remove_abandoned(path)
        # Also removes a link that someone may have put there.
        temporary.unlink(missing_ok=True)
        lock = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        try:
            if fcntl is not None:
                # Shows other processes that this one is alive, however it ends.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if callable(content):
                content(temporary)
            else:
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            if not private:
                # Some writers create files that only their owner may read.
                temporary.chmod(0o666 & ~UMASK)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            os.close(lock)
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote this file."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"\d+\.tmp")
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    for name in names:
        try:
            handle = os.open(path.with_name(name), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # No file of ours, or gone already.
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_name(name).unlink(missing_ok=True)
        except BlockingIOError:
            continue  # Its process is still writing.
        finally:
            os.close(handle)


def temporary_names(name: str) -> str:
    """The pattern of the temporary files that :func:`write_atomically` makes for a file."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/.{last}.*.tmp" if folder else f".{last}.*.tmp"


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Make an OSError name this file: a full disk shows in calls that know no name."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # A message of its own, without the system's number.
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Make sure that a rename in a folder survives a power failure."""
    if os.name == "nt":  # Windows cannot open folders.
        return
    with naming_errors(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
