"""The devices' public keys in a folder, as people copy files there and delete them."""

from __future__ import annotations

import logging
import time
from base64 import b64encode
from pathlib import Path

from fedpbc.errors import one_line

__all__ = ["KeyDirectory"]

LOG = logging.getLogger("fedpbc.deployment")
BEING_WRITTEN_SECONDS = 10.0
"""So long an empty file may be one that is just being copied."""


class KeyDirectory:
    """Follows a folder: a file that is gone is a device that is shut out.

    A file that is there, but cannot be read, or only by half, shuts nobody out: what was known of
    it stays, and is one warning.

    Example:
        >>> import tempfile
        >>> KeyDirectory(Path(tempfile.mkdtemp())).now()
        {}
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key_of: dict[str, str] = {}
        # What the files looked like that need not be read again.
        self._looks: dict[str, tuple[int, ...]] = {}
        self._said: dict[str, str] = {}

    def now(self) -> dict[str, str]:
        """The keys, as they come in requests, with their files' names.

        Only files that have changed are read: it may be asked for often.
        """
        try:
            names = sorted(path.name for path in self._folder.iterdir() if path.suffix == ".pub")
        except OSError as error:
            if self._key_of:
                self._say(self._folder.name, f"those that were known stay: {one_line(error)}")
        else:
            self._said.pop(self._folder.name, None)
            read = {name: self._read(name) for name in names}
            self._key_of = {name: key for name, key in read.items() if key is not None}
            self._looks = {name: self._looks[name] for name in names if name in self._looks}
        return {key: name.removesuffix(".pub") for name, key in self._key_of.items()}

    def _read(self, name: str) -> str | None:
        before, place = self._key_of.get(name), self._folder / name
        try:
            status = place.stat()
            looks = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if before is not None and self._looks.get(name) == looks:
                return before
            self._looks.pop(name, None)
            content = place.read_bytes()
            if not content:
                if before is not None and time.time() - status.st_mtime < BEING_WRITTEN_SECONDS:
                    return before
                self._say(name, "it is empty: nobody has its key")
                return None
            key = parsed(content)
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            kept = "it is left out" if before is None else "its device's last key stays"
            self._say(name, f"{kept}: {one_line(error)}")
            return before
        self._said.pop(name, None)
        if time.time() - status.st_ctime > 1:
            # Nobody has written to it since without changing its looks.
            self._looks[name] = looks
        return key

    def _say(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            LOG.warning("%s: %s", name, text)
        self._said[name] = text


def parsed(content: bytes) -> str:
    """A public key as it comes in requests, from what OpenSSH writes, or a ValueError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )

    try:
        key = load_ssh_public_key(content)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    plain = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return b64encode(plain).decode("ascii")
