"""Which app and data each client trains with: a change is refused until it was accepted.

identities.json   the fingerprints of each client's first answer, and of those that are refused
accepted.json     fingerprints that ``fedpbc fleet accept`` has accepted instead

A twin, a second device with the same key, has other data, or it answers with the same bits.
Imports no torch, for ``fleet status`` and ``fleet accept``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.limits import parse_json
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_own_file

__all__ = ["Identities", "Identity", "accept_identities", "refused_identities"]

LOG = logging.getLogger("fedpbc.deployment")
IDENTITIES, ACCEPTED = "identities.json", "accepted.json"
SMALL_FILE = 1 << 26
FINGERPRINT = re.compile(r"[0-9a-f]{32}|")


@dataclass(frozen=True)
class Identity:
    """What a client trains with, as fingerprints; empty where an earlier version sent none."""

    app: str = ""
    data: str = ""

    @classmethod
    def parsed(cls, value: Mapping[str, Any]) -> Identity:
        """From a file or a message; a ValueError if it is something else."""
        identity = cls(value["app"], value["data"])
        for text in (identity.app, identity.data):
            if not isinstance(text, str) or not FINGERPRINT.fullmatch(text):
                raise ValueError("a fingerprint is malformed")
        return identity

    def difference(self, other: Identity) -> str:
        """What differs, in words.

        Example:
            >>> Identity("a" * 32, "b" * 32).difference(Identity("a" * 32, "c" * 32))
            'other data than before'
        """
        kinds = [kind for kind in ("app", "data") if getattr(self, kind) != getattr(other, kind)]
        return f"{' and '.join(f'other {kind}' for kind in kinds)} than before"


class Identities:
    """The clients' identities in one job, in the server's folder."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.job = folder, job
        self._known: dict[int, Identity] = {}
        self._refused: dict[int, Identity] = {}
        self._accepted: tuple[int, dict[int, Identity]] = 0, {}
        self._changed: set[int] = set()
        self._is_written = True
        try:
            written = read_identities(folder)
            if written["job"] == job:
                self._known, self._refused = written["clients"], written["refused"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Only what has changed up to now goes unnoticed.
            LOG.warning("ignored %s: %s", IDENTITIES, one_line(error))

    def problem(self, client: int, identity: Identity) -> str | None:
        """Why a client's answer is refused; None if it trains with what it always has."""
        known = self._known.get(client)
        if known is not None and identity != known and self._accepts(client, identity):
            LOG.info("client %d has %s, which was accepted", client, identity.difference(known))
            self._changed.add(client)
            known = None
        if known is None or identity == known:
            if known is None and identity != Identity():
                self._known[client], self._is_written = identity, False
            if self._refused.pop(client, None) is not None:
                self._is_written = False
            return None
        if self._refused.get(client) != identity:
            self._refused[client], self._is_written = identity, False
        return (
            f"it has {identity.difference(known)}: 'fedpbc fleet accept' in the server's folder "
            "accepts it"
        )

    def changed(self) -> list[int]:
        """The clients whose accepted change has taken effect since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def save(self) -> None:
        """Write what is new."""
        if self._is_written:
            return
        content = {
            "job": self.job,
            "clients": {client: asdict(each) for client, each in sorted(self._known.items())},
            "refused": {client: asdict(each) for client, each in sorted(self._refused.items())},
        }
        write_atomically(self.folder / IDENTITIES, json.dumps(content) + "\n")
        self._is_written = True

    def _accepts(self, client: int, identity: Identity) -> bool:
        path = self.folder / ACCEPTED
        try:
            modified = path.stat().st_mtime_ns
            if modified != self._accepted[0]:
                self._accepted = modified, read_accepted(self.folder)
        except FileNotFoundError:
            self._accepted = 0, {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            LOG.warning("ignored %s: %s", ACCEPTED, one_line(error))
        return self._accepted[1].get(client) == identity


def read_identities(folder: Path) -> dict[str, Any]:
    """Read ``identities.json``."""
    content = parse_json(read_own_file(folder, IDENTITIES, SMALL_FILE))
    return {
        "job": str(content["job"]),
        **{name: _parsed(content[name]) for name in ("clients", "refused")},
    }


def read_accepted(folder: Path) -> dict[int, Identity]:
    """Read ``accepted.json``."""
    return _parsed(parse_json(read_own_file(folder, ACCEPTED, SMALL_FILE)))


def _parsed(clients: Mapping[str, Any]) -> dict[int, Identity]:
    return {int(client): Identity.parsed(value) for client, value in clients.items()}


def refused_identities(folder: Path) -> dict[int, str]:
    """What has changed at each client whose answers are refused for it.

    A FedpbcError says that the file is damaged.
    """
    try:
        written = read_identities(folder)
        known, refused = written["clients"], written["refused"]
        return {i: each.difference(known.get(i, Identity())) for i, each in refused.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedpbcError(
            f"{folder / IDENTITIES} is damaged: {one_line(error)}; a server writes it again"
        ) from None


def accept_identities(folder: Path, clients: list[int]) -> None:
    """Accept what these clients now train with; a running server takes it with its next round."""
    problems = refused_identities(folder)
    for client in clients:
        if client not in problems:
            names = ", ".join(map(str, sorted(problems))) or "none is"
            raise InputError("client", client, f"one that is refused for a change: {names}")
    refused = read_identities(folder)["refused"]
    try:
        accepted = read_accepted(folder)
    except FileNotFoundError:
        accepted = {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedpbcError(
            f"{folder / ACCEPTED} is damaged: {one_line(error)}; delete it, and accept again"
        ) from None
    accepted |= {client: refused[client] for client in clients}
    content = {client: asdict(each) for client, each in sorted(accepted.items())}
    write_atomically(folder / ACCEPTED, json.dumps(content) + "\n")
