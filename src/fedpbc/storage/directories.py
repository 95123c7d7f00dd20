"""Directories for results: making them, and locking them against other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpbc.errors import FedpbcError, InputError

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked_directory", "make_directory"]


def make_directory(path: Path) -> None:
    """Make a directory for results, and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {path} cannot be made ({error.strerror})") from None


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold a directory's lock; the lock of a killed process is released by the system."""
    with (path / ".lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedpbcError(f"{path} is in use by another process") from None
        yield
