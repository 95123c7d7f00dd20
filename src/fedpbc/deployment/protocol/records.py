"""Parcels as Flower's records, and back. Imports Flower, and no torch."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpbc.deployment.protocol.messages import MessageError, Payload, Vector

__all__ = ["from_records", "to_records"]

RAW = "fedpbc.raw"
"""What we call plain little-endian bytes."""


def to_records(parcel: Payload) -> RecordDict:
    """For a message.

    Example:
        >>> from_records(to_records(Payload({"kind": "hello"}))).kind
        'hello'
    """
    arrays = {
        name: Array(vector.dtype, (len(vector.data),), RAW, vector.data)
        for name, vector in parcel.vectors.items()
    }
    return RecordDict({"header": ConfigRecord(dict(parcel.header)), "vectors": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Payload:
    """From a message, whoever sent it; a ParcelError if it is none of ours."""
    header, arrays = records.get("header"), records.get("vectors")
    if not isinstance(header, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError("it is not a message of ours")
    plain = {k: v for k, v in header.items() if isinstance(v, str | int | float | bool)}
    vectors = {}
    for name, array in arrays.items():
        if array.stype != RAW:
            raise MessageError(f"its vector {name!r} is of kind {array.stype!r}, not {RAW!r}")
        vectors[name] = Vector(array.dtype, array.data)
    return Payload(plain, vectors)
