"""Check the server's certificate and key before a fleet starts."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from fedpbc.errors import InputError, one_line

__all__ = ["check_certificate"]


def check_certificate(folder: Path) -> datetime:
    """Return when the server's certificate expires; an InputError if it cannot be used."""
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            expected = "a folder with ca.crt, server.crt and server.key; or use --insecure"
            raise InputError("certificates", str(folder), expected)
    from cryptography import x509

    try:
        for name in ("ca.crt", "server.key"):
            (folder / name).read_bytes()
        certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
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
