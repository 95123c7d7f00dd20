"""Which requests the gateway forwards, for whom, and how much of them. No I/O but reading keys."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import h11

from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.node_identity import PUBLIC_KEY, NodeSignatures
from fedpbc.deployment.security.pinned_nodes import clients_before
from fedpbc.deployment.server.connection_slots import Connection, ConnectionLimits
from fedpbc.deployment.server.http1 import RejectedRequest
from fedpbc.deployment.server.upload_budget import UploadBudget

__all__ = ["Limits", "RequestPolicy"]

PREFIX = b"/v1/fleet/"
PULL_MESSAGES, PUSH_MESSAGES = PREFIX + b"pull-messages", PREFIX + b"push-messages"
PUSH_OBJECT = PREFIX + b"push-object"
UPLOADS = {PUSH_MESSAGES, PUSH_OBJECT}
CALLS = {
    *(PULL_MESSAGES, PUSH_MESSAGES, PUSH_OBJECT, PREFIX + b"pull-object"),
    *(PREFIX + b"activate-node", PREFIX + b"deactivate-node", PREFIX + b"send-node-heartbeat"),
    PREFIX + b"confirm-message-received",
}
"""The requests of devices."""
KEYLESS_CALLS = {PREFIX + b"register-node", PREFIX + b"unregister-node"}
"""Further requests, of devices without keys."""
SMALL = 2**16
"""Bytes of a request that uploads nothing."""
KEYS_SECONDS = 1.0
"""How often the folder of keys is read."""


@dataclass(frozen=True)
class Limits:
    """How much devices may send.

    Attributes:
        reply: bytes of one reply; the server bounds those that arrive in pieces.
        request: bytes of one request: a piece of a reply, and its head.
        connections: how many may be open at a time.
    """

    reply: int
    request: int = 2**24 + 2**16
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)

    def of_request(self, path: bytes) -> int:
        """Bytes of a request with this path."""
        return min(self.reply, self.request) if path in UPLOADS else SMALL


class RequestPolicy:
    """Decides about requests, and counts what devices send."""

    def __init__(self, limits: Limits, keys: Path | None) -> None:
        """Set up the rules; without ``keys``, the folder of public keys, any device may connect."""
        self.limits = limits
        self._keys = None if keys is None else KeyDirectory(keys, clients_before(keys.parent))
        self._name_of: dict[str, str] = {} if self._keys is None else self._keys.names_by_key()
        self._keys_read_at = time.monotonic()
        self._signatures = NodeSignatures()
        self._budget = UploadBudget(limits.reply)

    def key_of(self, connection: Connection, headers: Mapping[bytes, bytes]) -> str | None:
        """The key of the device that sends a request; None in a fleet without keys.

        The first request of a connection must be signed. TLS proves that those after it have the
        same sender, and the server verifies them as well. Raises RejectedRequest.
        """
        if self._keys is None:
            return None
        # Known keys are looked up again as well: their files may have been deleted.
        if time.monotonic() - self._keys_read_at > KEYS_SECONDS:
            self._name_of, self._keys_read_at = self._keys.names_by_key(), time.monotonic()
        key = headers.get(PUBLIC_KEY, b"").decode("latin-1")
        if key not in self._name_of:
            raise RejectedRequest(401, "unknown key" if key else "no key")
        if connection.key not in (None, key):
            raise RejectedRequest(401, "a second key on the same connection")
        if connection.key is None:
            try:
                self._signatures.signer(headers)
            except ValueError as error:
                raise RejectedRequest(401, str(error)) from None
        return key

    def caller(self, connection: Connection) -> str:
        """How a device is called in the log; whoever has signed nothing is an address."""
        name = None if connection.key is None else self._name_of.get(connection.key)
        return connection.address if name is None else f"{name} ({connection.address})"

    def check(self, request: h11.Request, length: int, connection: Connection) -> None:
        """Raise RejectedRequest unless a request with a body of this length may pass."""
        method, path = request.method, request.target
        calls = CALLS if self._keys is not None else CALLS | KEYLESS_CALLS
        if (method, request.http_version) != (b"POST", b"1.1") or path not in calls:
            what = f"{method[:10].decode('latin-1')} {path[:60].decode('latin-1')!r}"
            raise RejectedRequest(404, f"{what} is not open to devices")
        if {b"expect", b"upgrade"} & {name for name, _ in request.headers}:
            raise RejectedRequest(400, "Expect and Upgrade are not supported")
        if length > (limit := self.limits.of_request(path)):
            raise RejectedRequest(413, f"request of {length:,} bytes, but at most {limit:,} pass")
        self._budget.charge(sender_of(connection), length)

    def count(self, connection: Connection, path: bytes, received: int) -> None:
        """Count a request that was accepted, by the length of the response."""
        if path == PULL_MESSAGES and received:
            self._budget.count_message(sender_of(connection))


def sender_of(connection: Connection) -> str:
    """Whose bytes are counted."""
    return connection.key or connection.address
