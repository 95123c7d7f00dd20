"""Flower's client of the Fleet API, with a node's key: all that a device uses of its inside."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError

__all__ = ["connect"]

WAIT_SECONDS = 10.0
"""How long the server may hold back an answer while there is no message."""
POLL_TIMEOUT = WAIT_SECONDS + 10.0
"""Seconds after which a silent connection is given up while waiting for a message."""
TIMEOUT = 60.0
"""Seconds for other calls: a slow link may still be sending what was written."""


def connect(server: str, key: Path | None, ca: Path | None) -> tuple[Any, bytes]:
    """Return a client of the server, and the node's public key; nothing is sent yet.

    Without ``ca``, the certificate of the fleet's authority, there is no TLS; without ``key``, the
    node has a key for as long as it runs.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP384R1,
        EllipticCurvePrivateKey,
        generate_private_key,
    )
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private: Any = generate_private_key(SECP384R1())
    if key is not None:
        try:
            private = load_ssh_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise InputError("key", str(key), f"a node's private key ({error})") from None
        if not isinstance(private, EllipticCurvePrivateKey):
            raise InputError("key", str(key), "a key of an elliptic curve")
    public = private.public_key()
    verify: ssl.SSLContext | bool = False
    if ca is not None:
        verify = ssl.create_default_context(cafile=str(ca))
    client = FleetHttpClient(
        f"{'http' if ca is None else 'https'}://{server}",
        interceptors=[NodeAuthHttpInterceptor(private, public), LongPoll()],
        verify=verify,
        timeout=TIMEOUT,
    )
    return client, public_key_to_bytes(public)


class LongPoll:
    """Asks the server to answer a poll only when there is a message, or after a while."""

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the header to polls, and give up sooner on a connection that has died."""
        if context.rpc_method.endswith("/PullMessages"):
            context.request.headers["fedpbc-wait"] = f"{WAIT_SECONDS:g}"
            context.request.extensions["timeout"]["read"] = POLL_TIMEOUT
        return call_next(context)
