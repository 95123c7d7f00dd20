"""The server's certificate: whether it is of use, and until when."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from fedpbc.errors import InputError, Verbatim, one_line

__all__ = ["check_certificate"]


def check_certificate(folder: Path) -> datetime:
    """When the server's certificate ends; an InputError if it is missing, or of no use."""
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            right = "a folder with ca.crt, server.crt and server.key, or say --insecure"
            raise InputError("certificates", str(folder), right)
    from cryptography import x509

    try:
        for name in ("ca.crt", "server.key"):
            (folder / name).read_bytes()
        certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise InputError("certificates", str(folder), f"readable ({one_line(error)})") from None
    check_key(folder)
    ends: datetime = certificate.not_valid_after_utc
    if ends < datetime.now(UTC):
        ended = f"expired on {ends:%Y-%m-%d}"
        raise InputError("certificates", Verbatim(ended), "renewed: 'fedpbc fleet renew' does it")
    return ends


def check_key(folder: Path) -> None:
    """An InputError if a server's key does not fit its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password, so that nobody is asked for one.
        context.load_cert_chain(folder / "server.crt", folder / "server.key", password="none")
    except (OSError, ValueError) as error:
        given, right = (
            Verbatim(f"{folder / 'server.key'}"),
            "the key of server.crt, without a password",
        )
        raise InputError("certificates", given, f"{right} ({one_line(error)})") from None
