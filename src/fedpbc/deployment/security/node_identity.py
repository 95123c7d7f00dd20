"""Who sends a request: the node whose key signed it, as Flower's nodes sign."""

from __future__ import annotations

import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

__all__ = ["NodeSignatures", "node_number"]

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
SECONDS_BEHIND, SECONDS_AHEAD = 305.0, 5.0
"""How far a device's clock may differ from the server's; Flower's own limits."""
MOST_KEYS = 10_000


def node_number(key: bytes) -> int:
    """The number of the node with this public key (PEM): always the same for the same key.

    Example:
        >>> node_number(b"a key") == node_number(b"a key") != node_number(b"another")
        True
    """
    return int.from_bytes(sha256(key).digest()[:8], "big") >> 1


class NodeSignatures:
    """Verifies the signatures of requests; remembers parsed keys and the last signature of each."""

    def __init__(self) -> None:
        self._keys: dict[str, Any] = {}
        self._verified: dict[str, tuple[str, str]] = {}

    def signer(self, headers: Mapping[bytes, bytes], now: float | None = None) -> bytes:
        """Return the public key that signed a request; a ValueError says why none did."""
        try:
            key, signature, timestamp = (
                headers[name].decode("ascii") for name in (PUBLIC_KEY, SIGNATURE, TIMESTAMP)
            )
        except (KeyError, UnicodeError):
            raise ValueError("not signed by a node") from None
        self._check_time(timestamp, time.time() if now is None else now)
        try:
            content = b64decode(key, validate=True)
            if self._verified.get(key) != (signature, timestamp):
                self._verify(key, content, b64decode(signature, validate=True), timestamp.encode())
                self._verified[key] = signature, timestamp
        except Base64Error:
            raise ValueError("key or signature is not base64") from None
        return content

    @staticmethod
    def _check_time(timestamp: str, now: float) -> None:
        try:
            age = now - datetime.fromisoformat(timestamp).timestamp()
        except (ValueError, OverflowError):
            raise ValueError("signed without a valid time") from None
        if not -SECONDS_AHEAD < age < SECONDS_BEHIND:
            side = f"{age:,.0f} s behind" if age > 0 else f"{-age:,.0f} s ahead of"
            raise ValueError(f"signed {side} the server's clock")

    def _verify(self, name: str, key: bytes, signature: bytes, content: bytes) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            public = self._keys.get(name) or load_pem_public_key(key)
            if not isinstance(public, EllipticCurvePublicKey):
                raise ValueError("the key is not one of an elliptic curve")
            public.verify(signature, content, ECDSA(SHA256()))
        except InvalidSignature:
            raise ValueError("the signature does not match the key") from None
        except UnsupportedAlgorithm as error:
            raise ValueError(str(error)) from None
        if len(self._keys) >= MOST_KEYS:
            # Without --insecure there are only as many as clients.
            self._keys.clear()
            self._verified.clear()
        self._keys[name] = public
