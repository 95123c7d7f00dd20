"""Unix sockets between processes of one machine: where they are, and who may open them."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from fedpbc.errors import InputError

__all__ = ["bound_socket", "check_socket", "peer_user", "remove_socket", "socket_for"]

LONGEST_PATH = 100
"""Bytes of a Unix socket's path: at most 108 on Linux, a little less elsewhere."""
TEMPORARY = Path("/tmp")
"""Holds the socket if the folder has a long path; only root may rename it."""


def check_socket(path: Path) -> None:
    """Raise an InputError if no socket can be at this path, or something else is there."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InputError("socket", str(path), f"at most {LONGEST_PATH} bytes long")
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISSOCK(mode):
        raise InputError("socket", str(path), "a path where nothing is but an earlier socket")


def remove_socket(path: Path) -> None:
    """Remove a socket that an earlier process left, and nothing else."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def bound_socket(path: Path, *, for_group: bool = False) -> socket.socket:
    """Listen at a path; only this user can connect, and with ``for_group`` its group.

    A socket that an earlier process left is replaced.
    """
    check_socket(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    remove_socket(path)
    # Not chmod afterwards: another user could connect in between.
    before = os.umask(0o117 if for_group else 0o177)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        expected = f"a path where a socket can be created ({error.strerror})"
        raise InputError("socket", str(path), expected) from None
    finally:
        os.umask(before)
    listening.listen(1024)
    return listening


def peer_user(connection: socket.socket) -> int | None:
    """The user id of the peer; None if the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    # struct ucred: process, user, group; user ids may exceed 2^31.
    size = struct.calcsize("iII")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("iII", credentials)[1])


def socket_for(folder: Path, name: str) -> Path:
    """Return the path of a socket: in its folder if that path is short enough."""
    path = folder / name
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    short = f"fedpbc-{sha256(os.fsencode(path)).hexdigest()[:16]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and is_private(Path(runtime)):
        path = Path(runtime, short)
        if len(os.fsencode(path)) <= LONGEST_PATH:
            return path
    return private_folder() / short


def private_folder() -> Path:
    """Create a folder with a short path, in which no other user can create a socket first."""
    folder = TEMPORARY / f"fedpbc-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise InputError(
            f"{folder}, the folder of the sockets, should belong to this user and be "
            "closed to others (mode 700): remove it, or give the fleet's folder a shorter path"
        )
    return folder


def is_private(folder: Path) -> bool:
    """Return whether it is a folder of this user that no one else can enter."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_ours and not stat.S_IMODE(status.st_mode) & 0o077
