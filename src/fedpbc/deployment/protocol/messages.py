"""What travels between server, client app and trainer: a few numbers and words, and vectors.

A parcel is plain data. Vectors are their raw bytes, little-endian, with a type and a length:
nothing is unpickled anywhere. This module imports no torch: a client app starts anew for every
message.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import FedpbcError

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
LONGEST_WORDS, LONGEST_REASON = 2000, 300
LARGEST = 2**32
"""Bytes of all vectors together that a reader takes, unless told otherwise."""


class Source(Protocol):
    """What a parcel is read from."""

    def read(self, size: int, /) -> bytes | None:
        """At most so many bytes; none at the end."""


class Sink(Protocol):
    """What a parcel is written to."""

    def write(self, data: bytes, /) -> int | None:
        """All of it, sooner or later."""

    def flush(self) -> None:
        """Now."""


class MessageError(FedpbcError):
    """A parcel that is not what it should be."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A flat vector as it travels.

    Example:
        >>> Vector.of(np.array([1.0, 2.0], dtype=np.float32)).array().tolist()
        [1.0, 2.0]
    """

    dtype: str
    data: bytes

    @classmethod
    def of(cls, values: NDArray[Any]) -> Vector:
        """From an array of one dimension."""
        if values.dtype.name not in DTYPES:
            raise MessageError(f"a vector of {values.dtype.name} cannot be sent")
        return cls(values.dtype.name, values.astype(values.dtype.newbyteorder("<")).tobytes())

    def array(self, dtype: str | None = None, size: int | None = None) -> NDArray[Any]:
        """The values; a ParcelError unless they have that type and size. Nobody else's memory."""
        if self.dtype not in DTYPES or dtype not in (None, self.dtype):
            raise MessageError(f"its vector is of type {self.dtype}, not {dtype or DTYPES[0]}")
        kind = np.dtype(self.dtype)
        if len(self.data) % kind.itemsize or size not in (None, len(self.data) // kind.itemsize):
            count = f"{len(self.data) / kind.itemsize:,.15g}"
            raise MessageError(f"its vector has {count} values, not {size or 'whole ones'}")
        native = np.frombuffer(self.data, dtype=kind.newbyteorder("<"))
        return native.astype(kind, copy=True)


@dataclass(frozen=True, eq=False)
class Payload:
    """A header of plain values, and vectors by name.

    Example:
        >>> Payload({"kind": "hello"}).kind
        'hello'
    """

    header: Mapping[str, Value]
    vectors: Mapping[str, Vector] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What it is: hello, work, answer or refusal."""
        return str(self.header.get("kind", ""))

    def text(self, name: str) -> str:
        """A word of the header; a ParcelError if there is none of that name."""
        value = self.header.get(name)
        if not isinstance(value, str):
            raise MessageError(f"its {name} is {value!r}, not a word")
        return value

    def whole(self, name: str) -> int:
        """A whole number of the header."""
        value = self.header.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise MessageError(f"its {name} is {value!r}, not a whole number")
        return value

    def number(self, name: str) -> float:
        """A finite number of the header."""
        value = self.header.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MessageError(f"its {name} is {value!r}, not a number")
        if not math.isfinite(value):
            raise MessageError(f"its {name} is not finite")
        return float(value)


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """What the server asks of a client: a segment, which holds all that the work depends on.

    ``start`` is the model that the server owes the client: for an algorithm whose clients have
    models of their own it is x^{r+1}, r the last round in which the client's answer was taken.

    Attributes:
        job: the server's training, whatever Flower calls its run.
        round: the round under way; an answer counts in no other.
        client: whose data.
        first_round: the first round to train in.
        rounds: how many rounds; the last is ``round``.
        first_batch: the number of the client's first batch.
        scale: η_g, where it is the client who applies it.
        everyone: whether clients train in rounds in which nobody hears of them.
        settings: how to train, as JSON; see settings.py.
        round_seconds: how long a round takes at most.
        age: seconds since this round began.
        job_rounds: T; there is nothing to train after the job's last round.
        start: the model to start from.
        correction: added to every gradient.

    Example:
        >>> one = Vector.of(np.ones(1))
        >>> work = TrainRequest("j", 4, 0, 2, 3, 10, 1.0, True, "{}", 60.0, 0.5, 9, one)
        >>> TrainRequest.unpack(work.pack()).rounds
        3
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
    start: Vector
    correction: Vector | None = None

    def pack(self) -> Payload:
        """As a parcel."""
        own = {name: value for name, value in vars(self).items() if not isinstance(value, Vector)}
        own.pop("correction", None)
        vectors = {"start": self.start}
        if self.correction is not None:
            vectors["correction"] = self.correction
        return Payload({"kind": "work", **own}, vectors)

    @classmethod
    def unpack(cls, parcel: Payload) -> TrainRequest:
        """From a parcel; a ParcelError if anything is missing or makes no sense."""
        if parcel.kind != "work" or "start" not in parcel.vectors:
            raise MessageError(f"it is a parcel of kind {parcel.kind!r}, not work")
        work = cls(
            job=parcel.text("job"),
            round=parcel.whole("round"),
            client=parcel.whole("client"),
            first_round=parcel.whole("first_round"),
            rounds=parcel.whole("rounds"),
            first_batch=parcel.whole("first_batch"),
            scale=parcel.number("scale"),
            everyone=parcel.header.get("everyone") is True,
            settings=parcel.text("settings"),
            round_seconds=parcel.number("round_seconds"),
            age=parcel.number("age"),
            job_rounds=parcel.whole("job_rounds"),
            start=parcel.vectors["start"],
            correction=parcel.vectors.get("correction"),
        )
        last = work.first_round + work.rounds - 1
        if min(work.first_round, work.first_batch) < 0 or work.rounds < 1 or last != work.round:
            raise MessageError(
                f"its rounds make no sense: {work.rounds} from {work.first_round} "
                f"for round {work.round}"
            )
        if work.round >= work.job_rounds:
            raise MessageError(f"its round is {work.round}, and its job has {work.job_rounds}")
        return work


@dataclass(frozen=True, eq=False)
class TrainReply:
    """What a client brings: its model after the work of a round.

    Example:
        >>> answer = TrainReply("j", 4, 0, Vector.of(np.ones(1)))
        >>> TrainReply.unpack(answer.pack()).round
        4
    """

    job: str
    round: int
    client: int
    end: Vector

    def pack(self) -> Payload:
        """As a parcel."""
        header: dict[str, Value] = {
            "kind": "answer",
            "job": self.job,
            "round": self.round,
            "client": self.client,
        }
        return Payload(header, {"end": self.end})

    @classmethod
    def unpack(cls, parcel: Payload) -> TrainReply:
        """From a parcel; a refusal is a ParcelError with its reason."""
        if parcel.kind == "refusal":
            raise MessageError(folded(parcel.text("reason")))
        if parcel.kind != "answer" or "end" not in parcel.vectors:
            raise MessageError(f"it is a parcel of kind {parcel.kind!r}, not an answer")
        own = parcel.text("job"), parcel.whole("round"), parcel.whole("client")
        return cls(*own, parcel.vectors["end"])


def folded(text: str) -> str:
    """On one line, and not too long: whose words it are may mean ill.

    Example:
        >>> folded("a\\n  b")
        'a b'
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_WORDS])
    return " ".join(plain.split())[:LONGEST_REASON]


def refusal(reason: str) -> Payload:
    """What a trainer says instead of an answer.

    Example:
        >>> refusal("no such data").header["reason"]
        'no such data'
    """
    return Payload({"kind": "refusal", "reason": reason})


def write_payload(stream: Sink, parcel: Payload) -> None:
    """Onto a local socket or a file.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> write_payload(stream, Payload({"kind": "hello"}))
        >>> read_payload(io.BytesIO(stream.getvalue())).kind
        'hello'
    """
    listed = [[name, v.dtype, len(v.data)] for name, v in parcel.vectors.items()]
    head = json.dumps({"header": dict(parcel.header), "vectors": listed}).encode()
    stream.write(MARK + struct.pack("<I", len(head)) + head)
    for vector in parcel.vectors.values():
        stream.write(vector.data)
    stream.flush()


def read_payload(stream: Source, largest: int = LARGEST) -> Payload:
    """From a local socket or a file; a ParcelError if it ends early or is none."""
    if _exactly(stream, len(MARK)) != MARK:
        raise MessageError("what came is not a parcel")
    (length,) = struct.unpack("<I", _exactly(stream, 4))
    if length > LARGEST_HEADER:
        raise MessageError(f"a parcel's header is {length:,} bytes long")
    try:
        head = json.loads(_exactly(stream, length))
        header, listed = head["header"], [(str(n), str(d), int(k)) for n, d, k in head["vectors"]]
        plain = all(isinstance(v, str | int | float | bool) for v in header.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError("a parcel's header cannot be read") from error
    sizes = [size for _, _, size in listed]
    if not plain or min(sizes, default=0) < 0 or sum(sizes) > largest:
        raise MessageError(f"a parcel of {sum(sizes):,} bytes: at most {largest:,} are taken")
    return Payload(header, {name: Vector(d, _exactly(stream, size)) for name, d, size in listed})


def _exactly(stream: Source, size: int) -> bytes:
    """So many bytes; grows with what really comes, not with what was announced."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = stream.read(min(size - len(pieces), 2**20))
        if not piece:
            raise MessageError("a parcel ended early")
        pieces += piece
    return bytes(pieces)
