"""The head of a device's request, signed as Flower's SuperNodes sign it."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key


def private_key(path: Path) -> Any:
    """Read a node's private key."""
    return load_ssh_private_key(path.read_bytes(), None)


def signed(key: Any, public: str, *, ahead: float = 0.0) -> dict[str, str]:
    """The headers of a device whose clock is so many seconds ahead."""
    at = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    signature = key.sign(at.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": public,
        "flwr-timestamp": at,
        "flwr-signature": b64encode(signature).decode(),
        "Content-Type": "application/protobuf",
    }
