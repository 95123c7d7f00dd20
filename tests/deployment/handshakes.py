"""TLS handshakes in memory."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusts(ca: Path, certificates: Path, host: str) -> bool:
    """Whether a device with that ca.crt trusts the server at that host name."""
    device_tls = ssl.create_default_context(cafile=str(ca))
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    to_server, to_device = ssl.MemoryBIO(), ssl.MemoryBIO()
    device = device_tls.wrap_bio(to_device, to_server, server_hostname=host)
    server = server_tls.wrap_bio(to_server, to_device, server_side=True)
    finished: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in {device, server} - finished:
            try:
                side.do_handshake()
                finished.add(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    assert finished == {device, server}
    return True
