"""Flower's SuperNode, with three behaviours patched.

1. A connection that breaks during the TLS handshake makes it give up, as if the certificate were
   wrong. Patched: it retries after every broken connection.
2. When it gives up, the process hangs instead of exiting, so no supervisor notices. Patched: it
   exits with a status.
3. Its retry delay grows to 20 seconds, in which rounds pass. Patched: at most three seconds.
"""

from __future__ import annotations

import os
import ssl
import sys
import traceback
from collections.abc import Callable
from typing import Any

from fedpbc.text import printable

__all__ = ["exit_code", "main", "patched", "retrying"]

LONGEST_DELAY = 3
"""Seconds between two attempts; an idle node polls as often anyway."""


def retrying(should_give_up: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """Wrap Flower's rule for giving up, so that broken connections are retried."""
    import httpx

    def rule(error: Exception) -> bool:
        if not isinstance(error, httpx.TransportError):
            return should_give_up(error)
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return should_give_up(error)
            cause = cause.__cause__ or cause.__context__
        # httpx sometimes keeps OpenSSL's error only as text.
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return should_give_up(error)
        return False

    return rule


def patched(make_invoker: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap Flower's factory of retry invokers: retry broken connections, with short delays."""
    from flwr.supercore.retry.retry_invoker import exponential

    def make_patched() -> Any:
        invoker = make_invoker()
        invoker.should_giveup = retrying(invoker.should_giveup)
        invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST_DELAY)
        return invoker

    return make_patched


def main() -> None:
    """Run the command ``flower-supernode``."""
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.cli.flower_supernode import flower_supernode

    fleet_http_connection.make_simple_http_retry_invoker = patched(
        fleet_http_connection.make_simple_http_retry_invoker
    )
    code = exit_code(flower_supernode)
    sys.stdout.flush()
    sys.stderr.flush()
    # Its threads would keep the process alive.
    os._exit(code)


def exit_code(run: Callable[[], object]) -> int:
    """Run a function, and return the status that Python would exit with; prints the reason."""
    try:
        run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{printable(error.code)}\n")
    except BaseException:
        traceback.print_exc()
    # Also if it returns: a SuperNode should run until it is stopped.
    return 1


if __name__ == "__main__":
    main()
