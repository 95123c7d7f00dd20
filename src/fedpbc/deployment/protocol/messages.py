"""The messages between server, client app and trainer: a header of plain values, and vectors.

Vectors travel as raw little-endian bytes with a type and a length: nothing is unpickled anywhere.
Imports no torch: a client app is started for every message.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from io import BufferedIOBase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import FedpbcError
from fedpbc.limits import MAX_INTEGER, parse_json
from fedpbc.text import printable

__all__ = [
    "MessageError",
    "Payload",
    "TrainReply",
    "TrainRequest",
    "Vector",
    "read_payload",
    "write_payload",
]

Value = str | int | float | bool
DTYPES = ("float32", "float64", "float16")
MARK = b"fpbc1\n"
LARGEST_HEADER = 2**20
LONGEST_REASON = 300
RECEIVED, UPLOAD = "received ", "upload "
"""Before the names of the vectors that are sent along with the model, and of those of a reply."""
LARGEST_VECTORS = 2**32
"""Bytes of all vectors of a payload together."""


class MessageError(FedpbcError):
    """A malformed or unexpected message."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A serialized flat vector."""

    dtype: str
    data: bytes

    @classmethod
    def of(cls, values: NDArray[Any]) -> Vector:
        """Serialize a one-dimensional array."""
        if values.dtype.name not in DTYPES:
            raise MessageError(f"a vector of {values.dtype.name} cannot be sent")
        return cls(values.dtype.name, values.astype(values.dtype.newbyteorder("<")).tobytes())

    def array(self, dtype: str | None = None, size: int | None = None) -> NDArray[Any]:
        """Copy the values; a MessageError unless they have that type and size."""
        if self.dtype not in DTYPES or dtype not in (None, self.dtype):
            raise MessageError(f"vector of type {self.dtype}, not {dtype or DTYPES[0]}")
        native = np.dtype(self.dtype)
        count, rest = divmod(len(self.data), native.itemsize)
        if rest or size not in (None, count):
            values = f"{len(self.data) / native.itemsize:,.15g}"
            raise MessageError(f"vector of {values} values, not {size or 'whole ones'}")
        return np.frombuffer(self.data, native.newbyteorder("<")).astype(native, copy=True)


@dataclass(frozen=True, eq=False)
class Payload:
    """A header of plain values, and vectors by name."""

    header: Mapping[str, Value]
    vectors: Mapping[str, Vector] = field(default_factory=dict)

    @property
    def vector_bytes(self) -> int:
        """The bytes of all vectors, without names and other framing."""
        return sum(len(vector.data) for vector in self.vectors.values())

    @property
    def kind(self) -> str:
        """One of hello, work (a TrainRequest), answer (a TrainReply) and refusal."""
        return str(self.header.get("kind", ""))

    def text(self, name: str) -> str:
        """Return a string of the header; a MessageError if it is none."""
        value = self.header.get(name)
        if not isinstance(value, str):
            raise MessageError(f"{name} is {value!r}, not a string")
        return value

    def integer(self, name: str) -> int:
        """Return an integer of the header."""
        value = self.header.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise MessageError(f"{name} is {value!r}, not an integer")
        if abs(value) > MAX_INTEGER:
            raise MessageError(f"{name} has {value.bit_length()} bits")
        return value

    def number(self, name: str) -> float:
        """Return a finite number of the header."""
        value = self.header.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MessageError(f"{name} is {value!r}, not a number")
        # Not in the other order: an integer may be too large to be a float.
        if not abs(value) <= MAX_INTEGER or not math.isfinite(value):
            raise MessageError(f"{name} is not finite, or too large")
        return float(value)


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """The segment that a client is to train: everything that its reply depends on.

    ``start`` is the client's synchronized model: for an algorithm whose clients keep their own
    models it is x^{r+1}, where r is the last round in which the client's reply was counted.
    What the client itself keeps is on the device only, and ``counted`` says which version of it.

    Attributes:
        job: identifies the server's training; a job may take several of Flower's runs.
        round: the current round; the reply counts in no other.
        rounds: how many rounds to train; the last is ``round``.
        first_batch: the index of the client's first batch.
        scale: η_g, where the client applies it.
        everyone: whether clients also train in rounds in which they do not get through.
        settings: how to train, as JSON; see ``FleetSettings.client_settings``.
        round_seconds: the deadline of a round.
        age: seconds since this round began.
        job_rounds: T; the trainer stops after the job's last round.
        counted: the last round in which the client's reply was counted; −1: none.
        start_over: the last round in which what the client uploaded was refused; −1: none. What
            it had trained by then is discarded: the segment begins again from ``start``.
        initial: the checksum of what a client keeps before its first counted reply.
        received: the vectors that the algorithm sends along with the model, by name.
    """

    job: str
    round: int
    client: int
    first_round: int
    rounds: int
    first_batch: int
    scale: float
    everyone: bool
    settings: str
    round_seconds: float
    age: float
    job_rounds: int
    counted: int
    start_over: int
    initial: str
    start: Vector
    received: Mapping[str, Vector] = field(default_factory=dict)

    def pack(self) -> Payload:
        """Convert to a payload."""
        header = dict(vars(self))
        vectors = {"start": header.pop("start")}
        vectors |= {f"{RECEIVED}{name}": vector for name, vector in header.pop("received").items()}
        return Payload({"kind": "work", **header}, vectors)

    @classmethod
    def unpack(cls, payload: Payload) -> TrainRequest:
        """Convert from a payload; a MessageError if anything is missing or inconsistent."""
        if payload.kind != "work" or "start" not in payload.vectors:
            raise MessageError(f"message of kind {payload.kind!r}, not 'work'")
        rest = dict(payload.vectors)
        start, received = rest.pop("start"), _named(rest, RECEIVED)
        request = cls(**_checked_header(cls, payload), start=start, received=received)
        first, rounds, current = request.first_round, request.rounds, request.round
        if min(first, request.first_batch) < 0 or rounds < 1 or first + rounds - 1 != current:
            raise MessageError(f"inconsistent rounds: {rounds} from {first} for round {current}")
        if not -1 <= request.counted < current:
            raise MessageError(f"counted is {request.counted}, but this is round {current}")
        if not -1 <= request.start_over < current:
            raise MessageError(f"start_over is {request.start_over}, in round {current}")
        if current >= request.job_rounds:
            raise MessageError(f"round is {current}, but the job has {request.job_rounds} rounds")
        if request.round_seconds <= 0 or request.age < 0:
            raise MessageError(f"rounds of {request.round_seconds} s, {request.age} s ago")
        return request


@dataclass(frozen=True, eq=False)
class TrainReply:
    """What a client uploads after the segment of a round, by name; most often its model.

    ``app`` and ``data`` are fingerprints of what it trains with; an earlier version sends none.
    """

    job: str
    round: int
    client: int
    upload: Mapping[str, Vector]
    app: str = ""
    data: str = ""

    def pack(self) -> Payload:
        """Convert to a payload."""
        header = dict(vars(self))
        vectors = {f"{UPLOAD}{name}": vector for name, vector in header.pop("upload").items()}
        return Payload({"kind": "answer", **header}, vectors)

    @classmethod
    def unpack(cls, payload: Payload) -> TrainReply:
        """Convert from a payload; a refusal is a MessageError with its reason."""
        if payload.kind == "refusal":
            raise MessageError(sanitized(payload.text("reason")))
        if payload.kind != "answer":
            raise MessageError(f"message of kind {payload.kind!r}, not 'answer'")
        upload = _named(payload.vectors, UPLOAD)
        return cls(**_checked_header(cls, payload), upload=upload)


def _named(vectors: Mapping[str, Vector], prefix: str) -> dict[str, Vector]:
    """The vectors without the prefix of their names; a MessageError for one of another kind."""
    for name in vectors:
        if not name.startswith(prefix):
            raise MessageError(f"unexpected vector {sanitized(name)!r}")
    return {name.removeprefix(prefix): vector for name, vector in vectors.items()}


def _checked_header(kind: type[TrainRequest | TrainReply], payload: Payload) -> dict[str, Any]:
    """Return the values of a message's plain fields; a MessageError if one has another type."""
    # Keys as in the fields' annotations, which are not evaluated.
    readers: dict[Any, Callable[[str], Value]] = {
        "str": payload.text,
        "int": payload.integer,
        "float": payload.number,
        "bool": lambda name: payload.header.get(name) is True,
    }
    return {
        f.name: readers[f.type](f.name)
        for f in fields(kind)
        if f.type in readers and (f.default is MISSING or f.name in payload.header)
    }


def sanitized(text: str) -> str:
    """Collapse to one line and truncate; the text is untrusted.

    Example:
        >>> sanitized("a\\n  b")
        'a b'
    """
    return printable(text, LONGEST_REASON)


def refusal(reason: str) -> Payload:
    """The reply of a trainer that cannot handle a request."""
    return Payload({"kind": "refusal", "reason": reason})


def write_payload(stream: BufferedIOBase, payload: Payload) -> None:
    """Write to a local socket or a file."""
    vectors = [[name, v.dtype, len(v.data)] for name, v in payload.vectors.items()]
    head = json.dumps({"header": dict(payload.header), "vectors": vectors}).encode()
    stream.write(MARK + struct.pack("<I", len(head)) + head)
    for vector in payload.vectors.values():
        stream.write(vector.data)
    stream.flush()


def read_payload(stream: BufferedIOBase, largest: int = LARGEST_VECTORS) -> Payload:
    """Read from a local socket or a file; a MessageError if it ends early or is malformed."""
    if _read_exactly(stream, len(MARK)) != MARK:
        raise MessageError("not a fedpbc message")
    (length,) = struct.unpack("<I", _read_exactly(stream, 4))
    if length > LARGEST_HEADER:
        raise MessageError(f"message with a header of {length:,} bytes")
    try:
        head = parse_json(_read_exactly(stream, length))
        header, entries = head["header"], [(str(n), str(d), int(k)) for n, d, k in head["vectors"]]
        plain = all(isinstance(v, str | int | float | bool) for v in header.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError("message with an unreadable header") from error
    sizes = [size for _, _, size in entries]
    if not plain or min(sizes, default=0) < 0 or sum(sizes) > largest:
        raise MessageError(f"message of {sum(sizes):,} bytes, but at most {largest:,} are accepted")
    vectors = {name: Vector(d, _read_exactly(stream, size)) for name, d, size in entries}
    return Payload(header, vectors)


def _read_exactly(stream: BufferedIOBase, size: int) -> bytes:
    """Read so many bytes; memory grows with what arrives, not with what was announced."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = stream.read(min(size - len(pieces), 2**20))
        if not piece:
            raise MessageError("message ended early")
        pieces += piece
    return bytes(pieces)
