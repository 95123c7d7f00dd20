"""Create a fleet's certificates and the devices' node keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpbc.deployment.security.certificates import (
    CertificateAuthority,
    generate_private_key,
    private_key_pem,
)
from fedpbc.storage.atomic import write_atomically

__all__ = ["generate_node_key", "make_certificates", "make_node_key", "make_server_certificate"]


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 825) -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key``, signed by a new authority.

    Devices need ``ca.crt`` only. The authority's key is used once and never written.
    """
    make_server_certificate(CertificateAuthority.generate(days), folder, hosts, days)


def make_server_certificate(
    authority: CertificateAuthority, folder: Path, hosts: Sequence[str], days: int
) -> None:
    """Write a new server key, its certificate and the authority's certificate."""
    key = generate_private_key()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.certificate_pem())
    (folder / "server.crt").write_bytes(authority.issue(key.public_key(), hosts, days))
    write_atomically(folder / "server.key", private_key_pem(key), private=True)


def make_node_key(folder: Path, name: str) -> Path:
    """Write a node's private key to ``NAME`` and its public key to ``NAME.pub``."""
    private, public = generate_node_key(name)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, private, private=True)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def generate_node_key(name: str) -> tuple[bytes, bytes]:
    """Generate a node's private and public key in the formats of OpenSSH."""
    key = generate_private_key()
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()
