"""Try to join a Ray cluster, in a process of its own that can be ended: ``ray_probe.py ADDRESS``.

Ray retries for minutes in native code, which no exception or signal handler interrupts, and writes
its warnings straight to the terminal. This process takes that upon itself. It prints nothing and
exits with code 0 if the cluster can be joined; otherwise it prints one line with the reason. It
imports nothing else of the package, to start fast.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

__all__ = ["JOIN_SECONDS", "main"]

ANSWER_SECONDS = 10
"""For the host's name to be found, and the port to answer as Ray does."""
JOIN_SECONDS = 20
"""For Ray to join the cluster."""
CLIENT, CLIENT_PORT = "ray://", 10001
"""How the address of a Ray client server begins, and its default port."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""Opens a gRPC connection, which Ray uses: the HTTP/2 preface and empty settings."""
SETTINGS = 4
"""The type of the frame that a gRPC server answers with."""


def main() -> None:
    """Run as a program."""
    address = sys.argv[1]
    limit(ANSWER_SECONDS)
    try:
        if address != "auto":
            check_answer(address)
        limit(0)
        import ray

        limit(JOIN_SECONDS)
        if address == "auto":
            check_answer(find_cluster())
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        ray.shutdown()
    except Exception as error:
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        # For the process that started this one, which makes it one line.
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        # Not sys.exit: Ray's threads may still be connecting.
        os._exit(1)


def limit(seconds: int) -> None:
    """End this process after so many seconds, whatever it is doing then; 0: no limit."""
    if hasattr(signal, "alarm"):  # Windows has none; there the caller's limit remains.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)


def check_answer(address: str) -> None:
    """Raise unless a gRPC server answers there."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host and address.startswith(CLIENT):
        host, port = port, str(CLIENT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS / 2) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(HELLO)
                answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != SETTINGS:
                    raise ConnectionError("the server there is not Ray")
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{address}: {error}") from None


def find_cluster() -> str:
    """Return what Ray finds for "auto"; the file that names the last cluster may be stale."""
    from ray._private.services import canonicalize_bootstrap_address

    address = canonicalize_bootstrap_address("auto")
    if address is None:
        raise ConnectionError("there is no running Ray cluster")
    return str(address)


if __name__ == "__main__":
    main()
