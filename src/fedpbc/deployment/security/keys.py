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

__all__ = [
    "generate_node_key",
    "make_certificates",
    "make_node_key",
    "make_server_certificate",
    "public_key_of",
]


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
    write_atomically(folder / "ca.crt", authority.certificate_pem())
    write_atomically(folder / "server.crt", authority.issue(key.public_key(), hosts, days))
    write_atomically(folder / "server.key", private_key_pem(key), private=True)


def make_node_key(folder: Path, name: str) -> Path:
    """Write a node's private key to ``NAME`` and its public key to ``NAME.pub``."""
    private, public = generate_node_key(name)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, private, private=True)
    write_atomically(folder / f"{name}.pub", public)
    return folder / name


def public_key_of(private: bytes, name: str) -> bytes:
    """Return the public key that belongs to a node's private key; a ValueError if it is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    try:
        key = load_ssh_private_key(private, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None
    public: bytes = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public + f" {name}\n".encode()


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
