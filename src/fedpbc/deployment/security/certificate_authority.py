"""A fleet's own certificate authority: signs the server's certificate, which devices then trust."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedpbc.deployment.address import HERE
from fedpbc.errors import FedpbcError, MissingExtraError, one_line
from fedpbc.storage.private import write_secret

__all__ = ["Authority", "end_of", "read_certificate", "read_server"]

NAME = "fedpbc fleet authority"
LOOPBACK = (HERE, "localhost")
"""The server's own processes come this way."""


@dataclass(frozen=True, eq=False)
class Authority:
    """Its certificate, which devices get, and its key, which nobody gets."""

    certificate: Any
    key: Any

    @classmethod
    def new(cls, days: int) -> Authority:
        """One that nobody knew before."""
        _, ec = _cryptography()
        key = ec.generate_private_key(ec.SECP384R1())
        begin, end = _from_now(days)
        unsigned = _unsigned(NAME, key.public_key(), key.public_key(), begin, end, authority=True)
        return cls(unsigned.sign(key, _hash()), key)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """From ``ca.crt`` and ``ca.key``."""
        _cryptography()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        for name in ("ca.crt", "ca.key"):
            if not (folder / name).is_file():
                raise FedpbcError(f"{folder / name} is missing: bring the authority's folder back")
        certificate = read_certificate(folder / "ca.crt")
        try:
            key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise FedpbcError(f"{folder / 'ca.key'} is no key: {one_line(error)}") from None
        if certificate.public_key() != key.public_key():
            raise FedpbcError(f"{folder}: ca.key is not the key of ca.crt")
        ends = certificate.not_valid_after_utc
        if ends <= datetime.now(UTC):
            raise FedpbcError(f"{folder} ended on {ends:%Y-%m-%d}: the fleet must be made anew")
        return cls(certificate, key)

    def write(self, folder: Path) -> None:
        """``ca.crt`` and ``ca.key``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(folder / "ca.key", private_pem(self.key))
        (folder / "ca.crt").write_bytes(self.certificate_pem())

    def certificate_pem(self) -> bytes:
        """What devices get."""
        return pem(self.certificate)

    def certify(self, public_key: Any, hosts: Sequence[str], days: int) -> bytes:
        """A server's certificate, for the names and addresses that devices know it by.

        It does not outlast the authority's own.
        """
        x509, _ = _cryptography()
        from cryptography.x509.oid import ExtendedKeyUsageOID

        begin, end = _from_now(days)
        end = min(end, self.certificate.not_valid_after_utc)
        names = [_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
        unsigned = _unsigned(hosts[0], public_key, self.key.public_key(), begin, end)
        server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        signed = (
            unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(server_only, critical=False)
            .sign(self.key, _hash())
        )
        return pem(signed)


def read_server(path: Path) -> tuple[Any, list[str]]:
    """The public key of a server's certificate, and the names and addresses in it."""
    x509, _ = _cryptography()
    found = read_certificate(path)
    try:
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise FedpbcError(f"{path} is no server's certificate: it names no host") from None
    return found.public_key(), [str(name.value) for name in named]


def end_of(path: Path) -> datetime:
    """When a certificate ends."""
    ends: datetime = read_certificate(path).not_valid_after_utc
    return ends


def read_certificate(path: Path) -> Any:
    """A certificate, as the library has it."""
    x509, _ = _cryptography()
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise FedpbcError(f"{path} is missing") from None
    except ValueError as error:
        raise FedpbcError(f"{path} is no certificate: {one_line(error)}") from None


def pem(certificate: Any) -> bytes:
    """A certificate as a file holds it."""
    from cryptography.hazmat.primitives.serialization import Encoding

    encoded: bytes = certificate.public_bytes(Encoding.PEM)
    return encoded


def private_pem(key: Any) -> bytes:
    """A key as a file holds it, without a password: services start by themselves."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    encoded: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return encoded


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtraError("making certificates", "flower") from None
    return x509, ec


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA384()


def _from_now(days: int) -> tuple[datetime, datetime]:
    # Clocks of devices may be a little behind.
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    return begin, begin + timedelta(days=days)


def _alternative(host: str) -> Any:
    x509, _ = _cryptography()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _unsigned(
    name: str,
    key: Any,
    issuer_key: Any,
    begin: datetime,
    end: datetime,
    *,
    authority: bool = False,
) -> Any:
    x509, _ = _cryptography()
    from cryptography.x509.oid import NameOID

    def named(text: str) -> Any:
        # A common name has at most 64 letters; clients look at the alternative names.
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

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
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(NAME))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issued_by, critical=False)
    )
