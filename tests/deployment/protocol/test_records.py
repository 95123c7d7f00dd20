from __future__ import annotations

import numpy as np
import pytest

from fedpbc.deployment.protocol.messages import MessageError, Payload, Vector

pytest.importorskip("flwr")


def test_a_payload_survives_flowers_records():
    from fedpbc.deployment.protocol.records import from_records, to_records

    header = {"kind": "work", "round": 3, "scale": 0.5, "everyone": True, "settings": "{}"}
    vector = Vector.of(np.array([1.5, np.nan, -0.0], dtype=np.float32))
    received = from_records(to_records(Payload(header, {"start": vector})))
    assert received.header == header
    assert received.vectors["start"].data == vector.data
    assert received.vectors["start"].dtype == "float32"


def test_other_records_are_refused():
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from fedpbc.deployment.protocol.records import from_records

    pickled = ArrayRecord({"start": Array("object", (1,), "pickle", b"x")})
    for records in (
        RecordDict({}),
        RecordDict({"header": pickled, "vectors": pickled}),
        RecordDict({"header": ConfigRecord({}), "vectors": pickled}),
    ):
        with pytest.raises(MessageError):
            from_records(records)
