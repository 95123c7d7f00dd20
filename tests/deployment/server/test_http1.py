"""The gateway's HTTP state machine, on bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("h11", reason="needs the extra: pip install 'fedpbc[flower]'")

import h11

from fedpbc.deployment.server.http1 import (
    LARGEST_HEAD,
    HttpConnection,
    RejectedRequest,
    forwarded_request,
    rejection_response,
)

REQUEST = b"POST /v1/fleet/a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"


def received(data: bytes, role=h11.SERVER) -> HttpConnection:
    connection = HttpConnection(role)
    connection.receive_data(data)
    return connection


def asked(response: bytes) -> HttpConnection:
    """The SuperLink's side after a request, with this response."""
    connection = HttpConnection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(response)
    return connection


def message(connection: HttpConnection):
    """A message's head and body."""
    head, body = connection.next_event(), b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return head, body


def respond(connection: HttpConnection, **headers: str) -> bytes:
    listed = [("Content-Length", "2"), *headers.items()]
    events = [h11.Response(status_code=200, headers=listed), h11.Data(b"ok"), h11.EndOfMessage()]
    return b"".join(connection.send(event) for event in events)


def test_a_request_in_one_piece_or_byte_by_byte():
    head, body = message(received(REQUEST))
    assert (head.method, head.target, body) == (b"POST", b"/v1/fleet/a", b"abc")
    slow = HttpConnection(h11.SERVER)
    for k in range(REQUEST.index(b"abc")):
        assert slow.next_event() is h11.NEED_DATA
        slow.receive_data(REQUEST[k : k + 1])
    assert slow.next_event() == head


def test_pipelined_requests_are_read_one_after_the_other():
    connection = received(REQUEST + REQUEST.replace(b"abc", b"def"))
    assert message(connection)[1] == b"abc"
    assert not connection.start_next_cycle()
    assert respond(connection).endswith(b"\r\n\r\nok")
    assert connection.start_next_cycle()
    assert message(connection)[1] == b"def"


@pytest.mark.parametrize("side", ["request", "response"])
def test_a_connection_ends_when_either_side_says_so(side):
    close = b"Connection: close\r\n"
    connection = received(REQUEST.replace(b"Host", (close if side == "request" else b"") + b"Host"))
    message(connection)
    response = respond(connection, **({"Connection": "close"} if side == "response" else {}))
    assert b"connection: close" in response.lower()
    assert not connection.start_next_cycle()


def test_an_end_between_requests_is_no_error():
    connection = received(b"")
    assert isinstance(connection.next_event(), h11.ConnectionClosed)


TOLERATED_BY_H11 = {
    "bare LF": b"POST / HTTP/1.1\nHost: a\r\n\r\n",
    "bare LF at the end": b"POST / HTTP/1.1\r\nHost: a\n\n\r\n\r\n",
    "folded line": b"POST / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "control character": b"POST / HTTP/1.1\r\nHost: a\r\nX: b\x01\r\n\r\n",
    "tab": b"POST / HTTP/1.1\r\nHost:\ta\r\n\r\n",
    "non-ASCII": b"POST / HTTP/1.1\r\nHost: \xe4\r\n\r\n",
    "the same length twice": REQUEST.replace(b"Host", b"content-length: 3\r\nHost"),
    "a list of lengths": REQUEST.replace(b"3\r", b"3, 3\r"),
    "16 digits": REQUEST.replace(b"3\r", b"0000000000000003\r"),
    "a repeated header": REQUEST.replace(b"Host", b"X: a\r\nx: a\r\nHost"),
}


@pytest.mark.parametrize("data", TOLERATED_BY_H11.values(), ids=TOLERATED_BY_H11)
def test_what_h11_tolerates_is_rejected(data):
    lax = h11.Connection(h11.SERVER)
    lax.receive_data(data)
    assert isinstance(lax.next_event(), h11.Request)
    with pytest.raises(RejectedRequest) as caught:
        received(data).next_event()
    assert caught.value.status == 400


@pytest.mark.parametrize("encoding", [b"chunked", b"Chunked", b"gzip", b"gzip, chunked"])
@pytest.mark.parametrize("length", [b"", b"Content-Length: 3\r\n"])
def test_a_chunked_request_is_rejected_with_or_without_a_length(encoding, length):
    head = b"POST / HTTP/1.1\r\nHost: a\r\n" + length + b"Transfer-Encoding: " + encoding
    with pytest.raises(RejectedRequest) as caught:
        received(head + b"\r\n\r\n0\r\n\r\n").next_event()
    assert caught.value.status == 411


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\n: a\r\n\r\n",
        b"POST  / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1 \r\nHost: a\r\n\r\n",
        b"\r\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\n",
        REQUEST.replace(b"3\r", b"+3\r"),
        REQUEST.replace(b"3\r", b"0x3\r"),
        REQUEST.replace(b"3\r", b"\r"),
    ],
)
def test_a_malformed_head_is_rejected(data):
    with pytest.raises(RejectedRequest) as caught:
        received(data).next_event()
    assert caught.value.status == 400


def test_a_head_that_ends_early_is_rejected():
    connection = received(REQUEST[:20])
    assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(b"")
    with pytest.raises(RejectedRequest, match="malformed"):
        connection.next_event()


def test_a_body_that_ends_early_is_an_error():
    connection = received(REQUEST[:-1])
    connection.next_event()
    assert connection.next_event().data == b"ab"
    connection.receive_data(b"")
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


def test_a_head_may_have_so_many_bytes():
    frame = b"POST / HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n"
    fill = LARGEST_HEAD - len(frame % b"")
    assert isinstance(received(frame % (b"x" * fill)).next_event(), h11.Request)
    for data in (frame % (b"x" * (fill + 1)), b"x" * (LARGEST_HEAD + 1)):
        with pytest.raises(RejectedRequest) as caught:
            received(data).next_event()
        assert caught.value.status == 431


def test_a_long_body_behind_a_short_head_is_no_long_head():
    body = bytes(4 * LARGEST_HEAD)
    data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert message(received(data + body))[1] == body


def test_a_chunked_response_is_forwarded_without_its_length():
    """A response with both would be ambiguous to the device."""
    superlink = asked(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    device = received(REQUEST)
    message(device)
    head, body = message(superlink)
    forwarded = device.send(head) + device.send(h11.Data(body)) + device.send(h11.EndOfMessage())
    assert b"content-length" not in forwarded.lower()
    assert forwarded.endswith(b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n")
    assert device.start_next_cycle()
    assert superlink.start_next_cycle()


def test_headers_that_may_repeat_in_a_response():
    head, _ = message(asked(b"HTTP/1.1 204 No Content\r\nVary: a\r\nvary: b\r\n\r\n"))
    assert head.headers == [(b"vary", b"a"), (b"vary", b"b")]
    with pytest.raises(RejectedRequest, match="'server' appears twice"):
        asked(b"HTTP/1.1 200 OK\r\nServer: a\r\nserver: b\r\n\r\n").next_event()


def test_a_forwarded_request_has_only_the_headers_that_devices_need():
    request = forwarded_request(b"/a", {b"cookie": b"b", b"accept": b"c"})
    assert (request.method, request.target) == (b"POST", b"/a")
    assert list(request.headers) == [
        (b"host", b"superlink"),
        (b"content-length", b"0"),
        (b"accept", b"c"),
    ]


def test_a_rejection_names_its_status_and_reason():
    response = rejection_response(RejectedRequest(404, "no"))
    assert response.startswith(b"HTTP/1.1 404 Refused\r\n")
    assert response.endswith(b"\r\n\r\nno")
