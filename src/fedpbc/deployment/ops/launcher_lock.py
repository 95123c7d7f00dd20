"""One launcher per folder: two would replace each other's files, sockets and processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.directories import is_locked, locked_directory

__all__ = ["has_launcher", "only_launcher"]

LOCK = ".launcher.lock"
"""Not the lock of the server's or the trainer's process, which the launcher starts."""


@contextmanager
def only_launcher(role: str, folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's launcher; an InputError if another one runs there."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_directory(folder, LOCK, patience=0.5))
        except InputError:
            raise
        except FedpbcError:
            raise InputError(
                f"a {role} is already running in {folder}: stop it first, or take another folder"
            ) from None
        yield


def has_launcher(folder: Path) -> bool:
    """Whether a launcher runs in a folder on this machine."""
    return is_locked(folder, LOCK)
