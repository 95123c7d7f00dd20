"""Register the devices' keys with the SuperLink.

Flower's own command registers one key per call and takes two seconds; a fleet has many keys.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any, TypeVar

from fedpbc.deployment.ops.flower_commands import FlowerCommands
from fedpbc.errors import FedpbcError, one_line
from fedpbc.limits import parse_json

__all__ = ["SuperLinkControl", "clients_by_key"]

LOG = logging.getLogger("fedpbc.deployment")
T = TypeVar("T")
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


class SuperLinkControl:
    """The SuperLink's control interface.

    Keys are never unregistered, because Flower does not accept an unregistered key again. A device
    whose key file was deleted is locked out all the same: the gateway rejects its key, and no
    client is pinned to its node.
    """

    def __init__(self, commands: FlowerCommands) -> None:
        self._commands = commands
        self._rejected: set[bytes] = set()

    def register(self, client_of: dict[bytes, int], timeout: float = 60.0) -> dict[int, int]:
        """Register keys and return the client of each node.

        A key that the SuperLink rejects is logged once and skipped.
        """
        return _retry(lambda: self._register(client_of), timeout)

    def wait_until_up(self, timeout: float) -> None:
        """Wait until the SuperLink accepts connections."""
        address = self._commands.server.host, self._commands.server.port
        _retry(lambda: socket.create_connection(address, timeout=1.0).close(), timeout)

    def _register(self, client_of: dict[bytes, int]) -> dict[int, int]:
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest

        control = self._connect()
        try:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
            node_of = {bytes(n.public_key): int(n.node_id) for n in nodes if not n.unregistered_at}
            for key in client_of.keys() - node_of.keys() - self._rejected:
                node = self._register_key(control, key, client_of[key])
                if node is not None:
                    node_of[key] = node
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error
        finally:
            control.close()
        return {node: client_of[key] for key, node in node_of.items() if key in client_of}

    def _register_key(self, control: Any, key: bytes, client: int) -> int | None:
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=key, name=f"client-{client}")
        try:
            return int(control.RegisterNode(request).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                # Temporary: the caller retries.
                raise
            self._rejected.add(key)
            LOG.warning(
                "the SuperLink rejects client-%d.pub (%s): make a new key with "
                "'fedpbc fleet add … --replace %d'",
                client,
                rejection_reason(error.response),
                client,
            )
            return None

    def _connect(self) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

        commands = self._commands
        root = None
        if commands.certificates is not None:
            root = (commands.certificates / "ca.crt").read_bytes()
        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperLink")]
        return ControlHttpClient.from_server_address(
            str(commands.server), commands.insecure, root, interceptors
        )


def _retry(attempt: Callable[[], T], timeout: float) -> T:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return attempt()
        except OSError as error:
            if time.monotonic() > deadline:
                raise FedpbcError(f"the SuperLink does not answer: {one_line(error)}") from None
        time.sleep(0.3)


def rejection_reason(response: Any) -> str:
    """Return the SuperLink's reason for rejecting a request, or its status code."""
    try:
        detail = parse_json(response.content)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = None
    if not isinstance(detail, str):
        return f"status {response.status_code}"
    return shorten(detail, 100, placeholder=" …").rstrip(".")
