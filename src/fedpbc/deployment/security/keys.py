"""Certificates and node keys for a fleet, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpbc.deployment.security.certificate_authority import Authority, private_pem
from fedpbc.errors import MissingExtraError
from fedpbc.storage.private import write_secret

__all__ = ["make_certificates", "make_node_key", "new_node_key", "new_server_key"]


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 825) -> None:
    """An authority of one's own (``ca.crt``) and the server's certificate and key.

    Devices need ``ca.crt`` only. The authority's key is used once and never written.

    Args:
        folder: where ``ca.crt``, ``server.crt`` and ``server.key`` go.
        hosts: the names and addresses that devices know the server by.
        days: how long the certificates last.
    """
    new_server_key(Authority.new(days), folder, hosts, days)


def new_server_key(authority: Authority, folder: Path, hosts: Sequence[str], days: int) -> None:
    """The server's key and certificate, and the authority's certificate beside them."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.certificate_pem())
    (folder / "server.crt").write_bytes(authority.certify(key.public_key(), hosts, days))
    write_secret(folder / "server.key", private_pem(key))


def make_node_key(folder: Path, name: str) -> Path:
    """A device's key, ``NAME``, and what the server is told of it, ``NAME.pub``."""
    private, public = new_node_key(name)
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / name, private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def new_node_key(name: str) -> tuple[bytes, bytes]:
    """A device's key and what the server is told of it, as OpenSSH writes both."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            PublicFormat,
        )
    except ImportError:
        raise MissingExtraError("making node keys", "flower") from None
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()
