"""Flower's SuperNode, with three of its habits mended.

A connection that is cut in the middle of TLS makes it give up for good, as if a certificate were
wrong; and when it gives up, it does not end, but stands still, so that no supervisor would notice.
Here it asks again after every broken connection, and its end is an end. And the longer a link was
down, the longer it waits before it asks again, up to 20 seconds, in which rounds pass: here a
device is back within three.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["main", "mended", "patient"]

LONGEST_WAIT = 3
"""Seconds between two tries; as often an idle node asks for messages anyway."""


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


def mended(make: Callable[[], Any]) -> Callable[[], Any]:
    """What makes Flower's rule of asking again, so that it makes ours."""
    from flwr.supercore.retry.retry_invoker import exponential

    def make_mended() -> Any:
        invoker = make()
        invoker.should_giveup = patient(invoker.should_giveup)
        invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST_WAIT)
        return invoker

    return make_mended


def main() -> None:
    """The command ``flower-supernode``."""
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.cli.flower_supernode import flower_supernode

    fleet_http_connection.make_simple_http_retry_invoker = mended(
        fleet_http_connection.make_simple_http_retry_invoker
    )
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
