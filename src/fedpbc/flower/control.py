"""What the launcher tells the SuperLink: which keys are devices' keys.

Flower's own command does this for one key a call, at two seconds each; a fleet has many.
"""

from __future__ import annotations

import re
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError, Words, one_line
from fedpbc.flower.door import known_keys
from fedpbc.flower.launch import Launch

__all__ = ["clients_of_keys", "register_keys"]

NAMED = re.compile(r"client-([0-9]+)")


def clients_of_keys(folder: Path, clients: int) -> dict[bytes, int]:
    """Which key is which client's, by the names of their files: ``client-3.pub``."""
    found: dict[bytes, int] = {}
    for key, name in known_keys(folder).items():
        match = NAMED.fullmatch(name)
        if match is None or int(match[1]) >= clients:
            right = f"client-0.pub to client-{clients - 1}.pub"
            raise InputError("keys", Words(f"{name}.pub in {folder}"), right)
        found[b64decode(key)] = int(match[1])
    if not found:
        raise InputError("keys", str(folder), "a folder with client-0.pub, …, or say --insecure")
    return found


def register_keys(launch: Launch, keys: dict[bytes, int], patience: float = 60.0) -> dict[int, int]:
    """Let exactly these keys in; gives the client of each of their nodes."""
    until = time.monotonic() + patience
    while True:
        try:
            return _register(launch, keys)
        except OSError as error:
            if time.monotonic() > until:
                raise FedpbcError(f"the SuperLink does not answer: {one_line(error)}") from None
        time.sleep(0.3)


def _register(launch: Launch, keys: dict[bytes, int]) -> dict[int, int]:
    import httpx
    from flwr.proto.control_pb2 import (
        ListNodesRequest,
        RegisterNodeRequest,
        UnregisterNodeRequest,
    )
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    trusted = None if launch.certificates is None else (launch.certificates / "ca.crt").read_bytes()
    client: Any = ControlHttpClient.from_server_address(
        launch.address,
        launch.insecure,
        trusted,
        [RuntimeVersionHttpInterceptor(component_name="SuperLink")],
    )
    try:
        listed = client.ListNodes(ListNodesRequest()).nodes_info
        known = {
            bytes(node.public_key): int(node.node_id) for node in listed if not node.unregistered_at
        }
        for key in known.keys() - keys.keys():
            client.UnregisterNode(UnregisterNodeRequest(node_id=known.pop(key)))
        for key in keys.keys() - known.keys():
            asked = RegisterNodeRequest(public_key=key, name=f"client-{keys[key]}")
            known[key] = int(client.RegisterNode(asked).node_id)
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error
    finally:
        client.close()
    return {node: keys[key] for key, node in known.items()}
