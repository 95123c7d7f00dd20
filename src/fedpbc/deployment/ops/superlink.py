"""What the launcher tells the SuperLink: which keys are devices' keys.

Flower's own command does this for one key a call, at two seconds each; a fleet has many.
"""

from __future__ import annotations

import logging
import re
import time
from base64 import b64decode
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from fedpbc.deployment.ops.launch import Launch
from fedpbc.errors import FedpbcError, one_line

__all__ = ["SuperLinkControl", "clients_of_keys"]

LOG = logging.getLogger("fedpbc.deployment")
NAMED = re.compile(r"client-(0|[1-9][0-9]*)")


def clients_of_keys(known: Mapping[str, str], clients: int) -> dict[bytes, int]:
    """Which key is which client's, by the names of their files: ``client-3.pub``.

    Others are left out: a key too many must not keep the rest from being taken up.

    Example:
        >>> clients_of_keys({"YQ==": "client-1", "Yg==": "client-2", "Yw==": "mine"}, clients=2)
        {b'a': 1}
    """
    found = {}
    for key, name in known.items():
        match = NAMED.fullmatch(name)
        if match is not None and int(match[1]) < clients:
            found[b64decode(key)] = int(match[1])
    return found


class SuperLinkControl:
    """The SuperLink, as its launcher knows it.

    A key stays registered there when its file is gone: a key that was unregistered can never come
    back. Who has no file is shut out all the same: the door turns the key away, and no client is
    pinned to its node.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._refused: set[bytes] = set()

    def register(self, keys: dict[bytes, int], patience: float = 60.0) -> dict[int, int]:
        """Make these keys known; gives the client of each of their nodes.

        A key that the SuperLink does not take is one warning, and the others go on without it.
        """
        until = time.monotonic() + patience
        while True:
            try:
                return self._register(keys)
            except OSError as error:
                if time.monotonic() > until:
                    raise FedpbcError(f"the SuperLink does not answer: {one_line(error)}") from None
            time.sleep(0.3)

    def _register(self, keys: dict[bytes, int]) -> dict[int, int]:
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest

        client = self._client()
        try:
            listed = client.ListNodes(ListNodesRequest()).nodes_info
            known = {bytes(n.public_key): int(n.node_id) for n in listed if not n.unregistered_at}
            for key in keys.keys() - known.keys() - self._refused:
                node = self._register_one(client, key, keys[key])
                if node is not None:
                    known[key] = node
        except httpx.HTTPError as error:
            raise OSError(str(error)) from error
        finally:
            client.close()
        return {node: keys[key] for key, node in known.items() if key in keys}

    def _register_one(self, client: Any, key: bytes, number: int) -> int | None:
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest

        asked = RegisterNodeRequest(public_key=key, name=f"client-{number}")
        try:
            return int(client.RegisterNode(asked).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                # It may do better the next time.
                raise
            self._refused.add(key)
            LOG.warning(
                "client-%d.pub is not accepted (%s): client %d needs a new key: "
                "'fedpbc fleet add … --replace %d'",
                number,
                reason_of(error.response),
                number,
                number,
            )
            return None

    def _client(self) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

        own = self._launch
        trusted = None if own.certificates is None else (own.certificates / "ca.crt").read_bytes()
        named = RuntimeVersionHttpInterceptor(component_name="SuperLink")
        return ControlHttpClient.from_server_address(own.address, own.insecure, trusted, [named])


def reason_of(answer: Any) -> str:
    """What the SuperLink says of a request that it does not take."""
    try:
        said = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        said = None
    if not isinstance(said, str):
        return f"status {answer.status_code}"
    return shorten(said, 100, placeholder=" …").rstrip(".")
