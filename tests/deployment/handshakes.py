"""TLS between a device and a server, in memory."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusts(ca: Path, certificates: Path, host: str) -> bool:
    """Whether a device with that ca.crt takes the server at that name for its own."""
    near = ssl.create_default_context(cafile=str(ca))
    far = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    far.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    device = near.wrap_bio(back, there, server_hostname=host)
    server = far.wrap_bio(there, back, server_side=True)
    ended: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in {device, server} - ended:
            try:
                side.do_handshake()
                ended.add(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    assert ended == {device, server}
    return True
