"""Flower's SuperNode, with two of its habits mended.

A connection that is cut in the middle of TLS makes it give up for good, as if a certificate were
wrong; and when it gives up, it does not end, but stands still, so that no supervisor would notice.
Here it asks again after every broken connection, and its end is an end.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["main", "patient"]


def patient(should_give_up: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """Flower's rule, but for connections that broke.

    Example:
        >>> import httpx
        >>> patient(lambda error: True)(httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING]"))
        False
    """
    import httpx

    def rule(error: Exception) -> bool:
        if not isinstance(error, httpx.TransportError):
            return should_give_up(error)
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, ssl.SSLCertVerificationError):
                return should_give_up(error)
            seen = seen.__cause__ or seen.__context__
        # httpx keeps what OpenSSL said only as text, at times.
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return should_give_up(error)
        return False

    return rule


def main() -> None:
    """The command ``flower-supernode``."""
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.cli.flower_supernode import flower_supernode

    make = fleet_http_connection.make_simple_http_retry_invoker

    def make_patient() -> Any:
        invoker: Any = make()
        invoker.should_giveup = patient(invoker.should_giveup)
        return invoker

    fleet_http_connection.make_simple_http_retry_invoker = make_patient
    code: object = 1
    try:
        flower_supernode()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
