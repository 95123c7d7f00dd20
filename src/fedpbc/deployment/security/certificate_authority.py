"""A fleet's own certificate authority, which signs the server's certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedpbc.deployment.address import HERE
from fedpbc.errors import FedpbcError, MissingExtraError, one_line
from fedpbc.storage.atomic import write_atomically

__all__ = ["CertificateAuthority", "read_certificate", "read_server_certificate"]

COMMON_NAME = "fedpbc fleet authority"
LOOPBACK_HOSTS = (HERE, "localhost")
"""Always certified, because the server's own processes connect over loopback."""


@dataclass(frozen=True, eq=False)
class CertificateAuthority:
    """A certificate, which devices receive, and its private key, which stays secret."""

    certificate: Any
    key: Any

    @classmethod
    def generate(cls, days: int) -> CertificateAuthority:
        """Create an authority with a new key."""
        key = generate_private_key()
        start, end = _validity(days)
        builder = _builder(
            COMMON_NAME, key.public_key(), key.public_key(), start, end, is_authority=True
        )
        return cls(builder.sign(key, _hash()), key)

    @classmethod
    def read(cls, folder: Path) -> CertificateAuthority:
        """Read ``ca.crt`` and ``ca.key``, and check that they match and are still valid."""
        _x509()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        for name in ("ca.crt", "ca.key"):
            if not (folder / name).is_file():
                raise FedpbcError(f"{folder / name} is missing: restore the authority's folder")
        certificate = read_certificate(folder / "ca.crt")
        try:
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except (ValueError, TypeError) as error:
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
        (folder / "ca.crt").write_bytes(self.certificate_pem())

    def certificate_pem(self) -> bytes:
        """Return the certificate that devices trust."""
        return _pem(self.certificate)

    def issue(self, public_key: Any, hosts: Sequence[str], days: int) -> bytes:
        """Issue a server certificate for host names and addresses.

        It expires no later than the authority's own certificate.
        """
        x509 = _x509()
        from cryptography.x509.oid import ExtendedKeyUsageOID

        start, end = _validity(days)
        end = min(end, self.certificate.not_valid_after_utc)
        names = [_alternative_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK_HOSTS])]
        server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return _pem(
            _builder(hosts[0], public_key, self.key.public_key(), start, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(server_only, critical=False)
            .sign(self.key, _hash())
        )


def read_server_certificate(path: Path) -> tuple[Any, list[str]]:
    """Read the public key of a server certificate and the hosts that it names."""
    x509 = _x509()
    certificate = read_certificate(path)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise FedpbcError(f"{path} is not a server certificate: it names no host") from None
    return certificate.public_key(), [str(name.value) for name in names]


def read_certificate(path: Path) -> Any:
    """Read an ``x509.Certificate`` from a PEM file."""
    try:
        return _x509().load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise FedpbcError(f"{path} is missing") from None
    except ValueError as error:
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


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA384()


def _validity(days: int) -> tuple[datetime, datetime]:
    # Clocks of devices may be slightly behind.
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    return start, start + timedelta(days=days)


def _alternative_name(host: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    common_name: str,
    key: Any,
    issuer_key: Any,
    start: datetime,
    end: datetime,
    *,
    is_authority: bool = False,
) -> Any:
    x509 = _x509()
    from cryptography.x509.oid import NameOID

    def x509_name(text: str) -> Any:
        # A common name has at most 64 characters; clients check the alternative names instead.
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

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
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(x509_name(common_name))
        .issuer_name(x509_name(COMMON_NAME))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer, critical=False)
    )
