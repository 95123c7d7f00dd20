"""Conversion between payloads and Flower's records. Imports Flower, and no torch."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpbc.deployment.protocol.messages import MessageError, Payload, Vector

__all__ = ["from_records", "to_records"]

RAW = "fedpbc.raw"
"""The serialization type of plain little-endian bytes."""


def to_records(payload: Payload) -> RecordDict:
    """Convert a payload to the content of a Flower message."""
    arrays = {
        name: Array(vector.dtype, (len(vector.data),), RAW, vector.data)
        for name, vector in payload.vectors.items()
    }
    return RecordDict(
        {"header": ConfigRecord(dict(payload.header)), "vectors": ArrayRecord(arrays)}
    )


def from_records(records: RecordDict) -> Payload:
    """Convert the content of an untrusted message; a MessageError if it is malformed."""
    header, arrays = records.get("header"), records.get("vectors")
    if not isinstance(header, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError("not a fedpbc message")
    plain = {k: v for k, v in header.items() if isinstance(v, str | int | float | bool)}
    vectors = {}
    for name, array in arrays.items():
        if array.stype != RAW:
            raise MessageError(f"vector {name!r} is serialized as {array.stype!r}, not {RAW!r}")
        vectors[name] = Vector(array.dtype, array.data)
    return Payload(plain, vectors)
