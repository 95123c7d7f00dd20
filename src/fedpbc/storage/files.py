"""Files that anyone may have put there: regular files only, bounded, no links outwards."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from fedpbc.errors import InputError

__all__ = [
    "MAX_BYTES",
    "append_line",
    "expanded",
    "is_inside_behind_links",
    "is_own_file",
    "open_regular_file",
    "read_inside",
    "read_own_file",
    "read_regular_file",
    "refuse_links",
]

MAX_BYTES = 1 << 30
"""Of a file that is read whole and is not a tensor file: a gigabyte."""


def expanded(path: str | Path, option: str) -> Path:
    """The path with ``~`` replaced by the user's folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # There is no such user.
        raise InputError(option, str(path), "a path; there is no user of that name") from None


def open_regular_file(path: Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a file to read; raises OSError for pipes and devices, which could block or never end."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # A NUL in the name.
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from None
    except OSError as error:
        if follow_links or error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path)) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular_file(path: Path, limit: int = MAX_BYTES, *, follow_links: bool = True) -> bytes:
    """Read a file whole; raises OSError for pipes and devices, and for one that is too large."""
    with open_regular_file(path, follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        # Not the limit: as much memory as is asked for would be allocated.
        return file.read(size)


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


def read_inside(folder: Path, name: str, limit: int = MAX_BYTES) -> bytes:
    """Read a file of a folder that its owner arranges; a link may lead to a place inside it.

    Systems that mount keys and configurations put such links there.
    """
    path = folder / name
    if not is_inside_behind_links(folder, name):
        raise OSError(errno.ELOOP, "it is a link out of its folder, not followed", str(path))
    return read_regular_file(path.resolve(), limit, follow_links=False)


def is_inside_behind_links(folder: Path, name: str) -> bool:
    """Whether what ``name`` stands for, if need be behind links, lies in ``folder``."""
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # Links in a circle.
        return False


def append_line(path: Path, line: str) -> None:
    """Append a line to a log, and sync it to disk; what fails half-way leaves nothing behind."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    handle = os.open(path, flags, 0o666)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = memoryview(f"{line}\n".encode())
        try:
            while content:
                content = content[os.write(handle, content) :]
            os.fsync(handle)
        except OSError as error:
            with suppress(OSError):  # A disk that takes nothing more has kept no part of it.
                os.ftruncate(handle, status.st_size)
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def refuse_links(folder: Path) -> None:
    """Raise InputError if anything below a folder is a link that leads out of it, or a pipe.

    For a folder in which files are read and written by name, also by libraries that follow links.
    """
    root = folder.resolve()
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
                inside = not stat.S_ISLNK(mode) or path.resolve().is_relative_to(root)
            except FileNotFoundError:  # Other processes may work there.
                continue
            except (OSError, RuntimeError):  # Links in a circle.
                inside = False
            if not inside:
                raise InputError(f"{path} is a link, which is not followed: remove it")
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise InputError(f"{path} is not a regular file: remove it")
