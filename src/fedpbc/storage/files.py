"""Reading files that anyone may have put there: regular files only, bounded, no links outwards."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from fedpbc.errors import InputError

__all__ = [
    "MAX_BYTES",
    "expanded",
    "is_own_file",
    "open_regular_file",
    "read_own_file",
    "read_regular_file",
]

MAX_BYTES = 1 << 30
"""Of a file that is read whole and is not a tensor file: a gigabyte."""


def expanded(path: str | Path, option: str) -> Path:
    """The path with ``~`` replaced by the user's folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # There is no such user.
        raise InputError(option, str(path), "a path; there is no user of that name") from None


def read_regular_file(path: Path, limit: int = MAX_BYTES, *, follow_links: bool = True) -> bytes:
    """Read a file whole; raises OSError for pipes and devices, which could block or never end."""
    with open_regular_file(path, follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        # Not more than it has: as much memory as is asked for would be allocated.
        return file.read(size)


def open_regular_file(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a file for reading; raises OSError for pipes, devices and folders."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # A NUL in the name.
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def is_own_file(folder: Path, name: str) -> bool:
    """Whether ``name`` is a regular file that lies in ``folder``, not behind a link.

    The folder itself may be reached by a link; what is in it must be its own.
    """
    path = folder / name
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        return path.parent.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def read_own_file(folder: Path, name: str, limit: int = MAX_BYTES) -> bytes:
    """Read a file of a folder that somebody may have sent; links are not followed."""
    path = folder / name
    if path.is_symlink() or not path.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path))
    return read_regular_file(path, limit, follow_links=False)
