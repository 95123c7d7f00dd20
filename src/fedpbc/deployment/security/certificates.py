"""A fleet's own certificate authority, and the server's certificate, which it signs."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedpbc.deployment.address import LOOPBACK
from fedpbc.errors import FedpbcError, InputError, MissingExtraError, one_line
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_inside

__all__ = [
    "CertificateAuthority",
    "check_server_certificate",
    "read_certificate",
    "read_server_certificate",
]

COMMON_NAME = "fedpbc fleet authority"
LARGEST_FILE = 1 << 20
"""Bytes of a file with a key or with certificates."""


@dataclass(frozen=True, eq=False)
class CertificateAuthority:
    """A certificate, which devices receive, and its private key, which stays secret."""

    certificate: Any
    key: Any

    @classmethod
    def generate(cls, days: int) -> CertificateAuthority:
        """Create an authority with a new key."""
        key = generate_private_key()
        return cls(_signed(COMMON_NAME, key.public_key(), key, days), key)

    @classmethod
    def read(cls, folder: Path) -> CertificateAuthority:
        """Read ``ca.crt`` and ``ca.key``, and check that they match and are still valid."""
        _x509()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        for name in ("ca.crt", "ca.key"):
            if not (folder / name).is_file():
                raise FedpbcError(f"{folder / name} is missing: restore the authority's folder")
        certificate = read_certificate(folder / "ca.crt")
        try:
            key = load_pem_private_key(read_inside(folder, "ca.key", LARGEST_FILE), None)
        except (ValueError, TypeError, OSError, UnsupportedAlgorithm) as error:
            raise FedpbcError(
                f"{folder / 'ca.key'} is not a private key: {one_line(error)}"
            ) from None
        if certificate.public_key() != key.public_key():
            raise FedpbcError(f"{folder}: ca.key is not the key of ca.crt")
        end = certificate.not_valid_after_utc
        if end <= datetime.now(UTC):
            raise FedpbcError(f"{folder} expired on {end:%Y-%m-%d}: create a new fleet")
        return cls(certificate, key)

    def write(self, folder: Path) -> None:
        """Write ``ca.crt`` and ``ca.key``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / "ca.key", private_key_pem(self.key), private=True)
        write_atomically(folder / "ca.crt", self.certificate_pem())

    def certificate_pem(self) -> bytes:
        """Return the certificate that devices trust."""
        return _pem(self.certificate)

    def issue(self, public_key: Any, hosts: Sequence[str], days: int) -> bytes:
        """Issue a server certificate for host names and addresses.

        It expires no later than the authority's own certificate.
        """
        latest = self.certificate.not_valid_after_utc
        return _pem(_signed(hosts[0], public_key, self.key, days, hosts, latest))


def read_server_certificate(path: Path) -> tuple[Any, list[str]]:
    """Read the public key of a server certificate and the hosts that it names."""
    x509 = _x509()
    from cryptography.exceptions import UnsupportedAlgorithm

    certificate = read_certificate(path)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificate.public_key(), [str(name.value) for name in names]
    except x509.ExtensionNotFound:
        raise FedpbcError(f"{path} is not a server certificate: it names no host") from None
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise FedpbcError(f"{path} is not a server certificate: {one_line(error)}") from None


def check_server_certificate(folder: Path) -> datetime:
    """Return when the server's certificate expires; an InputError if it cannot be used."""
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            expected = "a folder with ca.crt, server.crt and server.key; or use --insecure"
            raise InputError("certificates", str(folder), expected)
    try:
        for name in ("ca.crt", "server.key"):
            read_inside(folder, name, LARGEST_FILE)
        content = read_inside(folder, "server.crt", LARGEST_FILE)
        certificate = _x509().load_pem_x509_certificate(content)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the certificates in {folder}: {one_line(error)}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A dummy password, so that OpenSSL does not prompt for one.
        context.load_cert_chain(folder / "server.crt", folder / "server.key", password="none")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / 'server.key'} should be the key of server.crt, without a password "
            f"({one_line(error)})"
        ) from None
    end: datetime = certificate.not_valid_after_utc
    if end < datetime.now(UTC):
        raise InputError(
            f"the server's certificate expired on {end:%Y-%m-%d}: run 'fedpbc fleet renew'"
        )
    return end


def read_certificate(path: Path) -> Any:
    """Read an ``x509.Certificate`` from a PEM file."""
    try:
        content = read_inside(path.parent, path.name, LARGEST_FILE)
        return _x509().load_pem_x509_certificate(content)
    except FileNotFoundError:
        raise FedpbcError(f"{path} is missing") from None
    except (ValueError, OSError) as error:
        raise FedpbcError(f"{path} is not a certificate: {one_line(error)}") from None


def generate_private_key() -> Any:
    """Generate a private key on the curve P-384, for certificates and for nodes."""
    _x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def private_key_pem(key: Any) -> bytes:
    """Encode a private key without a password: services start unattended."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    encoded: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return encoded


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    encoded: bytes = certificate.public_bytes(Encoding.PEM)
    return encoded


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError("creating keys and certificates", "flower") from None
    return x509


def _alternative_name(host: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signed(
    common_name: str,
    key: Any,
    issuer_key: Any,
    days: int,
    hosts: Sequence[str] = (),
    latest: datetime | None = None,
) -> Any:
    """Sign a server's certificate for these hosts; without hosts, an authority's own."""
    x509 = _x509()
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def x509_name(text: str) -> Any:
        # A common name has at most 64 characters; clients check the alternative names instead.
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    # Clocks of devices may be slightly behind.
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    end = start + timedelta(days=days)
    is_authority = not hosts
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509_name(common_name))
        .issuer_name(x509_name(COMMON_NAME))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer, critical=False)
    )
    if hosts:
        # The server's own processes connect over loopback.
        names = map(_alternative_name, dict.fromkeys([*hosts, LOOPBACK, "localhost"]))
        server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        builder = builder.add_extension(server_only, critical=False)
    return builder.sign(issuer_key, SHA384())
