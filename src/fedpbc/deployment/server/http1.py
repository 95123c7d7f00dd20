"""HTTP/1.1 as the gateway speaks it: h11's state machine behind a stricter check of every head.

If a proxy and the server behind it read the same bytes differently, a request can be smuggled past
the proxy. h11 accepts several deviations that RFC 9112 lets a recipient tolerate; `check_head`
rejects them. No I/O here: bytes in, events out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import h11

__all__ = [
    "LARGEST_HEAD",
    "HttpConnection",
    "RejectedRequest",
    "check_head",
    "forwarded_request",
    "rejection_response",
]

LARGEST_HEAD = 2**14
HEAD = re.compile(rb"(?:[!-~][ -~]*\r\n)+\r\n")
"""Lines of printable ASCII that end in CRLF and do not begin with a space."""
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *[0-9]{1,15} *\r\n", re.IGNORECASE)
MAY_REPEAT = {b"set-cookie", b"vary"}
FORWARDED = {
    b"content-type",
    b"accept",
    b"accept-encoding",
    b"user-agent",
    b"flwr-public-key",
    b"flwr-signature",
    b"flwr-timestamp",
    b"flwr-package-name",
    b"flwr-package-version",
    b"flwr-component-name",
    b"fedpbc-wait",
}


class RejectedRequest(Exception):
    """A request that is not forwarded: the status and the reason to respond with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class HttpConnection:
    """One side of the gateway: towards a device (h11.SERVER) or the SuperLink (h11.CLIENT)."""

    def __init__(self, role: type[h11.CLIENT | h11.SERVER]) -> None:
        self._h11 = h11.Connection(role, max_incomplete_event_size=LARGEST_HEAD)

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer; empty bytes are the end of its stream."""
        self._h11.receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """The next event of h11.

        Raises:
            RejectedRequest: a head that is malformed, ambiguous or too long.
            h11.RemoteProtocolError: a body that is malformed or ends early.
        """
        if self._h11.their_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self._h11.next_event()
        received, is_closed = self._h11.trailing_data
        end = received.find(b"\r\n\r\n") + 4
        is_whole = end >= 4
        if (end if is_whole else len(received)) > LARGEST_HEAD:
            raise RejectedRequest(431, f"request head of more than {LARGEST_HEAD:,} bytes")
        if is_whole:
            check_head(received[:end], is_request=self._h11.our_role is h11.SERVER)
        elif not is_closed:
            # h11 would also end a head at "\n\n".
            return h11.NEED_DATA
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError:
            raise RejectedRequest(400, "malformed HTTP request") from None

    def send(self, event: h11.Event) -> bytes:
        """The bytes of an event for the peer."""
        return self._h11.send(event) or b""

    def start_next_cycle(self) -> bool:
        """Prepare for the next request; False if the connection must be closed instead."""
        if (self._h11.our_state, self._h11.their_state) != (h11.DONE, h11.DONE):
            return False
        self._h11.start_next_cycle()
        return True


def check_head(head: bytes, *, is_request: bool) -> None:
    """Raise RejectedRequest for what h11 would accept but another parser may read differently.

    Bare CR or LF, folded lines, control characters, tabs, non-ASCII text, repeated headers, a list
    of lengths, and chunked requests.

    Example:
        >>> check_head(b"POST / HTTP/1.1\\r\\nA: 1\\r\\na: 1\\r\\n\\r\\n", is_request=True)
        Traceback (most recent call last):
        fedpbc.deployment.server.http1.RejectedRequest: header 'a' appears twice
    """
    if HEAD.fullmatch(head) is None:
        raise RejectedRequest(400, "malformed HTTP request")
    seen: set[bytes] = set()
    for line in head[:-4].split(b"\r\n")[1:]:
        name = line.partition(b":")[0].lower()
        if name in seen and name not in MAY_REPEAT:
            raise RejectedRequest(400, f"header {name[:30].decode('latin-1')!r} appears twice")
        seen.add(name)
    if is_request and b"transfer-encoding" in seen:
        raise RejectedRequest(411, "request without a Content-Length")
    if b"content-length" in seen and not CONTENT_LENGTH.search(head):
        raise RejectedRequest(400, "invalid Content-Length")


def forwarded_request(path: bytes, headers: Mapping[bytes, bytes]) -> h11.Request:
    """The request that the SuperLink receives: rebuilt from the headers that devices need."""
    length = headers.get(b"content-length", b"0")
    rebuilt = [(b"host", b"superlink"), (b"content-length", length)]
    rebuilt += [(name, value) for name, value in headers.items() if name in FORWARDED]
    return h11.Request(method=b"POST", target=path, headers=rebuilt)


def rejection_response(rejection: RejectedRequest) -> bytes:
    """The whole response to a rejected request; the connection is closed after it."""
    body = rejection.reason.encode("ascii", "replace")
    head = f"HTTP/1.1 {rejection.status} Refused\r\nContent-Type: text/plain\r\n"
    return head.encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
