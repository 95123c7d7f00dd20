"""HTTP as the door reads it: heads, strictly, and bodies as they come.

What one reader takes for one request may be two to the next one: so whatever could be read in
another way is refused, and what is passed on is written anew.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

__all__ = [
    "IDLE_SECONDS",
    "LARGEST_HEAD",
    "RejectedRequest",
    "RequestHead",
    "answer_of",
    "copy",
    "copy_chunks",
    "read_head",
]

FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):(.*)")
PASSED_ON = {
    "content-type",
    "accept",
    "accept-encoding",
    "user-agent",
    "flwr-public-key",
    "flwr-signature",
    "flwr-timestamp",
    "flwr-package-name",
    "flwr-package-version",
    "flwr-component-name",
}
MAY_REPEAT = {"set-cookie", "vary"}
"""In the SuperLink's answers."""
LARGEST_HEAD = 2**14
IDLE_SECONDS = 300.0


class RejectedRequest(Exception):
    """Somebody is turned away, with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class RequestHead:
    """The head of a request or an answer: its first line, and fields by small letters."""

    first: str
    fields: dict[str, str]
    raw: bytes

    @classmethod
    def parse(cls, raw: bytes) -> RequestHead:
        """From bytes up to the empty line; strict, so that nobody reads it in another way.

        Example:
            >>> RequestHead.parse(b"POST /a HTTP/1.1\\r\\nContent-Length: 3\\r\\n\\r\\n").length()
            3
        """
        try:
            first, *lines = raw.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        except UnicodeDecodeError:
            raise RejectedRequest(400, "its request is not HTTP") from None
        fields: dict[str, str] = {}
        for line in (first, *lines):
            # An end of line of another kind may be one to who reads it next.
            if not line.isprintable():
                raise RejectedRequest(400, "its request is not HTTP")
        for line in lines:
            match = FIELD.fullmatch(line)
            if match is None:
                raise RejectedRequest(400, "its request is not HTTP")
            if match[1].lower() in fields and match[1].lower() not in MAY_REPEAT:
                raise RejectedRequest(400, f"its request says {match[1][:30]!r} twice")
            fields[match[1].lower()] = match[2].strip()
        return cls(first, fields, raw)

    def length(self) -> int:
        """The length of the body."""
        if "transfer-encoding" in self.fields:
            raise RejectedRequest(411, "its request does not say how long it is")
        text = self.fields.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,15}", text):
            raise RejectedRequest(400, f"the length of its request is {text[:20]!r}")
        return int(text)

    def passed_on(self, path: str) -> bytes:
        """The request as the SuperLink gets it: made anew, of what devices need."""
        kept = [(name, value) for name, value in self.fields.items() if name in PASSED_ON]
        lines = [f"POST {path} HTTP/1.1", "host: superlink", f"content-length: {self.length()}"]
        return "\r\n".join([*lines, *(f"{n}: {v}" for n, v in kept), "", ""]).encode("ascii")


async def read_head(
    reader: asyncio.StreamReader, patience: float = IDLE_SECONDS
) -> RequestHead | None:
    """The next head; None if the other side has ended."""
    try:
        async with asyncio.timeout(patience):
            raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise RejectedRequest(431, "the head of its request is too long") from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise RejectedRequest(400, "its request is not HTTP") from None
        return None
    if len(raw) > LARGEST_HEAD:
        raise RejectedRequest(431, "the head of its request is too long")
    return RequestHead.parse(raw)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
    """So many bytes, as they come."""
    while length > 0:
        async with asyncio.timeout(IDLE_SECONDS):
            piece = await reader.read(min(length, 2**16))
        if not piece:
            raise EOFError("it ended early")
        length -= len(piece)
        writer.write(piece)
        await writer.drain()
    await writer.drain()


async def copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body whose length shows only at its end."""
    size = 1
    while size:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        size = int(line.split(b";")[0], 16)
        await copy(reader, writer, size + 2)


def answer_of(turned: RejectedRequest) -> bytes:
    """What somebody is told who is turned away.

    Example:
        >>> answer_of(RejectedRequest(404, "no")).split(b"\\r\\n")[0]
        b'HTTP/1.1 404 Refused'
    """
    body = turned.reason.encode("ascii", "replace")
    head = f"HTTP/1.1 {turned.status} Refused\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
