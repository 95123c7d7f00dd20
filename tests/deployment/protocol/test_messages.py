from __future__ import annotations

import io
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpbc.deployment.protocol.messages import (
    MARK,
    MessageError,
    Payload,
    TrainReply,
    TrainRequest,
    Vector,
    read_payload,
    refusal,
    write_payload,
)
from tests.deployment.fake_network import sent_and_received

REQUEST = TrainRequest(
    job="j",
    round=4,
    client=1,
    first_round=2,
    rounds=3,
    first_batch=10,
    scale=1.5,
    everyone=True,
    settings='{"seed": 1}',
    round_seconds=60.0,
    age=0.25,
    job_rounds=9,
    counted=-1,
    start_over=-1,
    initial="00000000",
    start=Vector.of(np.arange(3.0)),
)


@given(
    st.sampled_from(["float32", "float64", "float16"]).flatmap(
        lambda name: arrays(np.dtype(name), st.integers(0, 20))
    )
)
def test_vectors_arrive_to_the_bit(values):
    # Infinities and NaNs, too: others decide whether to accept them.
    received = (
        sent_and_received(Payload({"kind": "x"}, {"v": Vector.of(values)})).vectors["v"].array()
    )
    assert received.dtype == values.dtype
    assert received.tobytes() == values.tobytes()


def test_a_request_arrives_as_it_was_sent():
    along = {"control": Vector.of(np.ones(3, dtype=np.float32)), "start": Vector.of(np.ones(1))}
    received = TrainRequest.unpack(
        sent_and_received(replace(REQUEST, counted=1, received=along).pack())
    )
    plain = {k: v for k, v in vars(REQUEST).items() if k not in ("start", "received", "counted")}
    assert {k: getattr(received, k) for k in plain} == plain
    assert received.counted == 1
    # A vector sent along may have any name, also that of the model.
    assert received.start.array().tolist() == [0, 1, 2]
    assert {name: vector.dtype for name, vector in received.received.items()} == {
        "control": "float32",
        "start": "float64",
    }
    assert TrainRequest.unpack(sent_and_received(REQUEST.pack())).received == {}


def test_a_reply_arrives_as_it_was_sent():
    upload = {"change": Vector.of(np.ones(3)), "loss": Vector.of(np.arange(1.0))}
    received = TrainReply.unpack(sent_and_received(TrainReply("j", 4, 1, upload).pack()))
    assert (received.job, received.round, received.client) == ("j", 4, 1)
    assert {name: v.array().tolist() for name, v in received.upload.items()} == {
        "change": [1, 1, 1],
        "loss": [0],
    }
    assert TrainReply("j", 4, 1, upload).pack().vector_bytes == 32


def test_vectors_that_belong_nowhere_are_an_error():
    extra = {"more": Vector.of(np.ones(1))}
    packed = REQUEST.pack()
    with pytest.raises(MessageError, match="unexpected vector 'more'"):
        TrainRequest.unpack(Payload(packed.header, {**packed.vectors, **extra}))
    packed = TrainReply("j", 4, 1, {}).pack()
    with pytest.raises(MessageError, match="unexpected vector 'more'"):
        TrainReply.unpack(Payload(packed.header, extra))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"rounds": 2},
        {"first_round": -1, "rounds": 6},
        {"first_batch": -5},
        {"job_rounds": 4},
        {"job_rounds": None},
        {"counted": -2},
        {"counted": 4},
        {"counted": None},
        {"initial": 0},
        {"round": "4"},
        {"client": 1.0},
        {"client": True},
        {"scale": float("nan")},
        {"job": 7},
        {"kind": "answer"},
    ],
    ids=str,
)
def test_an_inconsistent_request_is_an_error(wrong):
    packed = REQUEST.pack()
    with pytest.raises(MessageError):
        TrainRequest.unpack(Payload({**packed.header, **wrong}, packed.vectors))


def test_a_vector_of_another_type_or_size_is_an_error():
    vector = Vector.of(np.zeros(3, dtype=np.float32))
    with pytest.raises(MessageError, match="of type float32, not float64"):
        vector.array("float64", 3)
    with pytest.raises(MessageError, match="of 3 values, not 4"):
        vector.array("float32", 4)
    with pytest.raises(MessageError, match=r"1\.25 values"):
        Vector("float32", bytes(5)).array()
    with pytest.raises(MessageError, match="int64 cannot be sent"):
        Vector.of(np.arange(3))


def test_a_pickle_is_no_vector():
    with pytest.raises(MessageError, match="of type object"):
        Vector("object", pickle.dumps([1])).array()


def test_truncated_large_and_malformed_payloads_are_errors():
    stream = io.BytesIO()
    write_payload(stream, REQUEST.pack())
    data = stream.getvalue()
    for cut in (0, 3, len(MARK) + 2, 40, len(data) - 1):
        with pytest.raises(MessageError, match="ended early"):
            read_payload(io.BytesIO(data[:cut]))
    with pytest.raises(MessageError, match="at most 10 are accepted"):
        read_payload(io.BytesIO(data), largest=10)
    with pytest.raises(MessageError, match="not a fedpbc message"):
        read_payload(io.BytesIO(b"GET / HTTP/1.1\r\n\r\n"))
    with pytest.raises(MessageError, match="header of 2,147,483,648 bytes"):
        read_payload(io.BytesIO(MARK + struct.pack("<I", 2**31)))
    for head in (b"{}", b"[]", b"\xff", b'{"header": {"a": []}, "vectors": []}'):
        with pytest.raises(MessageError):
            read_payload(io.BytesIO(MARK + struct.pack("<I", len(head)) + head))


def test_a_refusal_is_an_error_with_its_reason():
    with pytest.raises(MessageError, match=r"^no such data$"):
        TrainReply.unpack(refusal("no such\n data"))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"header": {"kind": ' + b"[" * 50_000 + b'}, "vectors": []}',
        b'{"header": {"n": ' + b"9" * 5000 + b'}, "vectors": []}',
        b'{"header": {"n": 1e999}, "vectors": []}',
        b'{"header": {"n": NaN}, "vectors": []}',
        b'{"header": {"n": null}, "vectors": []}',
        b'{"header": [], "vectors": []}',
        b'{"header": {}, "vectors": {"a": 1}}',
        b'{"header": {}, "vectors": [["a", "float32", -1]]}',
        b'{"header": {}, "vectors": [["a", "float32", 1e18]]}',
        b'{"header": {}, "vectors": [["a", "float32", 99999999999999999999]]}',
        b"\xff\xfe",
        b"3",
    ],
)
def test_an_absurd_header_is_refused(header):
    message = MARK + struct.pack("<I", len(header)) + header
    with pytest.raises(MessageError) as raised:
        read_payload(io.BytesIO(message))
    assert len(str(raised.value)) < 1100


@pytest.mark.parametrize(
    "change",
    [
        {"round": 10**400},
        {"scale": 10**400},
        {"scale": float("inf")},
        {"age": -1.0},
        {"round_seconds": 0.0},
        {"round_seconds": -(10**300)},
        {"job": 3},
        {"settings": "x" * 10**6, "client": "y" * 10**6},
    ],
)
def test_an_absurd_request_is_refused(change):
    payload = REQUEST.pack()
    with pytest.raises(MessageError) as raised:
        TrainRequest.unpack(Payload({**payload.header, **change}, payload.vectors))
    assert len(str(raised.value)) <= 1000


def test_the_reason_of_a_refusal_is_one_line_without_control_characters():
    with pytest.raises(MessageError) as raised:
        TrainReply.unpack(refusal("a\x1b[31m\nfake line\u202e" + "x" * 9000))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) <= 300
