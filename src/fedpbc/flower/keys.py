"""Certificates and node keys for a fleet, made on the spot."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedpbc.errors import MissingExtraError

__all__ = ["make_certificates", "make_node_key"]


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 825) -> None:
    """An authority of one's own (``ca.crt``) and the server's certificate and key.

    Devices need ``ca.crt`` only. The authority's key is used once and never written.

    Args:
        folder: where ``ca.crt``, ``server.crt`` and ``server.key`` go.
        hosts: the names and addresses that devices know the server by.
        days: how long the certificates last.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise MissingExtraError("making certificates", "flower") from None
    begin, curve = datetime.now(UTC) - timedelta(hours=1), ec.SECP384R1()
    end = begin + timedelta(days=days)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def unsigned(
        name: str, key: ec.EllipticCurvePrivateKey, authority: bool
    ) -> x509.CertificateBuilder:
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("fedpbc fleet authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(own, critical=False)
            .add_extension(issued_by, critical=False)
        )

    ca_key, server_key = ec.generate_private_key(curve), ec.generate_private_key(curve)
    authority = unsigned("fedpbc fleet authority", ca_key, True).sign(ca_key, hashes.SHA384())
    names: list[x509.GeneralName] = []
    # The server's own processes come over loopback.
    for host in dict.fromkeys([*hosts, "127.0.0.1", "localhost"]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    server = (
        unsigned(hosts[0], server_key, False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(Encoding.PEM))
    plain = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / "server.key", plain)


def make_node_key(folder: Path, name: str) -> Path:
    """A device's key, ``NAME``, and what the server is told of it, ``NAME.pub``."""
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
    folder.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_secret(folder / name, private)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    return folder / name


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
