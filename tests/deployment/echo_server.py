"""Stands for the server behind a gateway: it echoes requests."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedpbc.deployment.address import LOOPBACK


class Handler(BaseHTTPRequestHandler):
    """Responds with the request's body; some bodies have other effects."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.requests.append((self.path, body if len(body) < 10_000 else b"%d" % len(body)))
        server.received += len(body)
        server.heads.append(dict(self.headers))
        if body.startswith(b"die"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(401 if body == b"refuse" else 200)
        if body == b"chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def echo_server(certificates: Path | None) -> Iterator[Any]:
    """A server with ``requests``, ``heads`` and the number of bytes ``received``."""
    server: Any = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    server.requests, server.heads, server.received = [], [], 0
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
