"""The folder of the devices' public keys, which an operator edits while the server runs."""

from __future__ import annotations

import logging
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

from fedpbc.deployment.security.node_identity import node_number
from fedpbc.errors import one_line
from fedpbc.storage.files import read_inside

__all__ = ["KeyDirectory", "clients_by_key"]

LOG = logging.getLogger("fedpbc.deployment")
COPY_SECONDS = 10.0
"""An empty file younger than this may still be being copied."""
LARGEST_KEY = 1 << 16
"""Bytes of a file with a public key."""
KEY_NAME = re.compile(r"client-(0|[1-9][0-9]*)")


def clients_by_key(names_by_key: Mapping[str, str], clients: int) -> dict[bytes, int]:
    """Map each key to its client, by the name of its file: ``client-3.pub``.

    Other files are ignored, so that a surplus key does not block the rest.

    Example:
        >>> clients_by_key({"YQ==": "client-1", "Yg==": "client-2", "Yw==": "mine"}, clients=2)
        {b'a': 1}
    """
    client_of = {}
    for key, name in names_by_key.items():
        match = KEY_NAME.fullmatch(name)
        if match is not None and int(match[1]) < clients:
            client_of[b64decode(key)] = int(match[1])
    return client_of


class KeyDirectory:
    """Reads the public keys in a folder; a device whose file was deleted loses access.

    A file that cannot be read or parsed revokes nothing: the key last read from it stays valid,
    and one warning is logged.
    """

    def __init__(self, folder: Path, clients_before: Mapping[int, int] | None = None) -> None:
        """Set up a reader of a folder.

        ``clients_before``: the client of each node when a server last ran, which keeps its key if
        another file has the same one.
        """
        self._folder, self._clients_before = folder, clients_before or {}
        self._keys: dict[str, str] = {}
        # Fingerprints of the files that need not be read again.
        self._fingerprints: dict[str, tuple[int, ...]] = {}
        self._warnings: dict[str, str] = {}
        self._name_of: dict[str, str] = {}
        self._duplicates: set[tuple[str, str]] = set()

    def names_by_key(self) -> dict[str, str]:
        """Map each key, encoded as in requests, to its file's name without ``.pub``.

        Only changed files are read, so this is cheap to call often.
        """
        try:
            names = sorted(path.name for path in self._folder.iterdir() if path.suffix == ".pub")
        except OSError as error:
            if self._keys:
                self._warn(self._folder.name, f"the last known keys stay valid: {one_line(error)}")
        else:
            self._warnings.pop(self._folder.name, None)
            keys = {name: self._read(name) for name in names}
            self._keys = {name: key for name, key in keys.items() if key is not None}
            self._fingerprints = {k: v for k, v in self._fingerprints.items() if k in keys}
        return self._unique_names()

    def _unique_names(self) -> dict[str, str]:
        """The name of each key; of two files with the same key, the one that had it before."""
        files: dict[str, list[str]] = {}
        for name, key in self._keys.items():
            files.setdefault(key, []).append(name)
        name_of: dict[str, str] = {}
        duplicates: set[tuple[str, str]] = set()
        for key, names in files.items():
            before = f"{self._name_before(key)}.pub" if len(names) > 1 else ""
            first = before if before in names else names[0]
            name_of[key] = first.removesuffix(".pub")
            duplicates |= {(name, first) for name in names if name != first}
        for name, first in sorted(duplicates - self._duplicates):
            LOG.warning("%s: ignored, it has the same key as %s", name, first)
        self._duplicates, self._name_of = duplicates, name_of
        return dict(name_of)

    def _name_before(self, key: str) -> str:
        """Which name had a key: in this process, or when a server last ran."""
        if (name := self._name_of.get(key)) is not None:
            return name
        return f"client-{self._clients_before.get(node_number(b64decode(key)))}"

    def _read(self, name: str) -> str | None:
        previous, path = self._keys.get(name), self._folder / name
        try:
            status = path.stat()
            fingerprint = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if previous is not None and self._fingerprints.get(name) == fingerprint:
                return previous
            self._fingerprints.pop(name, None)
            content = read_inside(self._folder, name, LARGEST_KEY)
            if not content:
                if previous is not None and time.time() - status.st_mtime < COPY_SECONDS:
                    return previous
                self._warn(name, "ignored, the file is empty")
                return None
            key = parse_public_key(content)
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            effect = "ignored" if previous is None else "the device's last key stays valid"
            self._warn(name, f"{effect}: {one_line(error)}")
            return previous
        self._warnings.pop(name, None)
        if time.time() - status.st_ctime > 1:
            # A younger file could change again within the resolution of its time stamps.
            self._fingerprints[name] = fingerprint
        return key

    def _warn(self, name: str, text: str) -> None:
        if self._warnings.get(name) != text:
            LOG.warning("%s: %s", name, text)
        self._warnings[name] = text


def parse_public_key(content: bytes) -> str:
    """Convert an OpenSSH public key to its encoding in requests; a ValueError if it is none."""
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
    return b64encode(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).decode()
