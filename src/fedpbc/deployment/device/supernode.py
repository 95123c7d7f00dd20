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
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["exit_code", "main", "mended", "patient"]

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
    code = exit_code(flower_supernode)
    sys.stdout.flush()
    sys.stderr.flush()
    # Its threads would keep it standing.
    os._exit(code)


def exit_code(run: Callable[[], object]) -> int:
    """What Python itself would make of an end: the reason goes to the errors, and a number.

    Example:
        >>> def run():
        ...     raise SystemExit(305)
        >>> exit_code(run)
        305
    """
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # Also where it only returns: it is not meant to end.
    return 1


if __name__ == "__main__":
    main()
