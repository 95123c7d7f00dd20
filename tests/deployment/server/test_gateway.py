"""The door before the SuperLink: what passes, what does not, and the lines about it."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import ssl
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.address import Address
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.server.gateway import Gateway, Limits

HERE = "127.0.0.1"


class Inside(BaseHTTPRequestHandler):
    """Stands for the SuperLink: says back what it was told."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, body))  # type: ignore[attr-defined]
        if self.path.endswith("die"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.server.heads.append(dict(self.headers))  # type: ignore[attr-defined]
        self.send_response(401 if self.path.endswith("refused") else 200)
        if self.path.endswith("chunks"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@contextmanager
def superlink(certificates):
    server = ThreadingHTTPServer((HERE, 0), Inside)
    server.daemon_threads, server.seen, server.heads = True, [], []  # type: ignore[attr-defined]
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Opened:
    """A door in a thread of its own."""

    def __init__(self, door: Gateway) -> None:
        self._door, self._ready = door, threading.Event()
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        with socket.socket() as probe:
            probe.bind((HERE, 0))
            self.port = probe.getsockname()[1]
        server = await self._door.open(Address(HERE, self.port))
        self._ready.set()
        await self._ended.wait()
        server.close()
        for task in list(self._door._tasks):
            task.cancel()
        await asyncio.gather(*self._door._tasks, return_exceptions=True)
        # What is closed is let go of a little later.
        await asyncio.sleep(0.05)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


class Place:
    """A SuperLink, a door before it, and a device."""

    def __init__(
        self, stack: ExitStack, folder, *, secure: bool = True, talks: bool = True, **limits
    ) -> None:
        certificates = folder / "certificates" if secure else None
        self.keys = folder / "keys"
        if secure:
            make_certificates(certificates, [HERE], days=3)
        self.certificates = certificates
        make_node_key(self.keys, "client-7")
        self.inside = stack.enter_context(superlink(certificates if talks else None))
        self.door = Gateway(
            Address(HERE, self.inside.server_address[1]),
            Limits(answer=1000, request=600, **limits),
            certificates=certificates,
            keys=self.keys if secure else None,
        )
        opened = Opened(self.door)
        stack.callback(opened.close)
        self.port = opened.port
        self.key = next(iter(KeyDirectory(self.keys).now())) if secure else ""

    def connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection(HERE, self.port, timeout=20)
        trust = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        return http.client.HTTPSConnection(HERE, self.port, context=trust, timeout=20)

    def ask(self, path="/v1/fleet/pull-messages", body=b"hello", method="POST", **headers):
        connection = self.connection()
        try:
            connection.request(method, path, body, {"flwr-public-key": self.key, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def place(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedpbc.deployment")
    with ExitStack() as stack:
        yield Place(stack, tmp_path)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def wait_for_line(caplog) -> str:
    until = time.monotonic() + 10
    while not lines(caplog):
        assert time.monotonic() < until
        time.sleep(0.01)
    return lines(caplog)[0]


def test_what_devices_need_passes_to_the_byte(place, caplog):
    body = bytes(range(256)) * 2
    connection = place.connection()
    for path in ("/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat"):
        connection.request("POST", path, body, {"flwr-public-key": place.key})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, body)
    connection.close()
    assert place.inside.seen == [
        ("/v1/fleet/pull-messages", body),
        ("/v1/fleet/send-node-heartbeat", body),
    ]
    assert place.ask("/v1/fleet/chunks") == (200, b"abcde")
    assert not lines(caplog)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/"),
        ("GET", "/v1/fleet/pull-messages"),
        ("GET", "/health"),
    ],
)
def test_nothing_else_passes_even_with_a_key(place, caplog, method, path):
    assert place.ask(path, method=method)[0] == 404
    assert not place.inside.seen
    [line] = lines(caplog)
    assert line.startswith(f"client-7 ({HERE}) is turned away: it asked for {method} ")


def test_an_unknown_key_is_turned_away(place, caplog, tmp_path):
    make_node_key(tmp_path / "other", "client-8")
    [other] = KeyDirectory(tmp_path / "other").now()
    assert place.ask(**{"flwr-public-key": other})[0] == 401
    assert place.ask(**{"flwr-public-key": ""})[0] == 401
    assert place.ask(**{"flwr-public-key": b64encode(b"nonsense").decode()})[0] == 401
    assert not place.inside.seen
    assert lines(caplog) == [
        f"{HERE} is turned away: its key is not known",
        f"{HERE} is turned away: it brings no key",
    ]


def test_a_key_that_is_added_is_known(place, caplog):
    make_node_key(place.keys, "client-8")
    [new] = KeyDirectory(place.keys).now().keys() - {place.key}
    time.sleep(1.1)
    assert place.ask(**{"flwr-public-key": new}) == (200, b"hello")


def test_a_key_that_is_taken_away_is_turned_away_also_on_an_open_connection(place, caplog):
    connection = place.connection()
    found = []
    for path in ("/v1/fleet/a", "/v1/fleet/b"):
        connection.request("POST", path, b"hello", {"flwr-public-key": place.key})
        answer = connection.getresponse()
        found.append((answer.status, answer.read()))
        (place.keys / "client-7.pub").unlink(missing_ok=True)
        time.sleep(1.1)
    connection.close()
    assert found == [(200, b"hello"), (401, b"its key is not known")]
    assert [path for path, _ in place.inside.seen] == ["/v1/fleet/a"]


def test_a_key_that_the_superlink_does_not_take_is_a_line(place, caplog):
    assert place.ask("/v1/fleet/refused")[0] == 401
    assert lines(caplog) == [
        f"client-7 ({HERE}) is turned away: its key, or its clock, is not accepted (status 401)"
    ]


def test_plain_http_is_turned_away(place, caplog):
    plain = http.client.HTTPConnection(HERE, place.port, timeout=20)
    plain.request("POST", "/v1/fleet/pull-messages", b"hello")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    plain.close()
    line = wait_for_line(caplog)
    assert line == f"{HERE} is turned away: it speaks plain HTTP, without TLS"


def test_who_trusts_another_authority_is_a_line(place, caplog, tmp_path):
    make_certificates(tmp_path / "others", [HERE])
    trust = ssl.create_default_context(cafile=tmp_path / "others/ca.crt")
    other = http.client.HTTPSConnection(HERE, place.port, context=trust, timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        other.request("POST", "/v1/fleet/pull-messages", b"hello")
    other.close()
    line = wait_for_line(caplog)
    assert line.startswith(f"{HERE} is turned away: it does not trust the server's certificate")


def test_an_expired_certificate_is_a_line(tmp_path, caplog, long_ago):
    with ExitStack() as stack:
        place = Place(stack, tmp_path, talks=False)
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            place.ask()
        line = wait_for_line(caplog)
    assert line == f"{HERE} is turned away: it says that the server's certificate has expired"


def test_a_large_request_is_turned_away(place, caplog):
    assert place.ask("/v1/fleet/pull-messages", bytes(601))[0] == 413
    assert not place.inside.seen
    [line] = lines(caplog)
    assert (
        line
        == f"client-7 ({HERE}) is turned away: it sends 601 bytes at once; at most 600 are taken"
    )


def test_a_large_answer_in_small_pieces_is_turned_away(place, caplog):
    assert place.ask("/v1/fleet/push-messages", bytes(100))[0] == 200
    assert place.ask("/v1/fleet/push-object", bytes(500))[0] == 200
    assert place.ask("/v1/fleet/push-object", bytes(400))[0] == 200
    assert place.ask("/v1/fleet/push-object", bytes(1))[0] == 413
    [line] = lines(caplog)
    assert "its answer has 1,001 bytes or more; at most 1,000 are taken" in line
    # The next answer counts for itself.
    assert place.ask("/v1/fleet/push-messages", bytes(100))[0] == 200
    assert place.ask("/v1/fleet/push-object", bytes(600))[0] == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/fleet/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /v1/fleet/a HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (b"POST /v1/fleet/a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/fleet/a HTTP/1.1\r\nContent-Length : 1\r\n\r\na", 400),
        (b"POST /v1/fleet/a HTTP/1.1\r\nx: a\nContent-Length: 5\r\n\r\n", 400),
        # What would be two lines, or two requests, to the SuperLink's own reader.
        (b"POST /v1/fleet/x\nContent-Length:90\r\nConnection: keep-alive\r\n\r\n", 400),
        (b"POST /v1/fleet/x\n\nPOST /v1/control/start-run HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nA: b\x00\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\n folded: 5\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/0.9\r\n\r\n", 404),
        (b"POST /v1/fleet/x HTTP/1.0\r\n\r\n", 404),
        (b"POST /v1/fleet/x\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nflwr-public-key: a\r\nFlwr-Public-Key: b\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"POST /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"POST /" + b"a" * 200_000, 431),
    ],
)
def test_requests_that_could_be_read_in_two_ways(tmp_path, caplog, head, status):
    with ExitStack() as stack:
        place = Place(stack, tmp_path, secure=False)
        with socket.create_connection((HERE, place.port), timeout=20) as raw:
            # A head that is far too long is refused, and the line closed, before all of it is sent.
            with suppress(OSError):
                raw.sendall(head)
                raw.shutdown(socket.SHUT_WR)
            answer = raw.makefile("rb").readline()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert not place.inside.seen


def test_the_superlink_gets_a_head_made_anew(place):
    place.ask(**{"X-Forwarded-For": "10.0.0.1", "Cookie": "a", "flwr-timestamp": "now"})
    [head] = place.inside.heads
    assert {name.lower() for name in head} == {
        "host",
        "content-length",
        "accept-encoding",
        "flwr-public-key",
        "flwr-timestamp",
    }
    assert head["host"] == "superlink"


def test_what_did_not_come_in_does_not_count(place):
    """A device whose link breaks sends again."""
    assert place.ask("/v1/fleet/push-messages", bytes(100))[0] == 200
    for _ in range(3):
        assert place.ask("/v1/fleet/push-die", bytes(500))[0] == 502
    assert place.ask("/v1/fleet/push-object", bytes(500))[0] == 200
    assert place.ask("/v1/fleet/push-object", bytes(400))[0] == 200


def test_connections_are_bounded(tmp_path, caplog):
    with ExitStack() as stack:
        place = Place(stack, tmp_path, connections=2)
        idle = [socket.create_connection((HERE, place.port), timeout=20) for _ in range(2)]
        for connection in idle:
            stack.callback(connection.close)
        until = time.monotonic() + 10
        while True:
            try:
                place.ask()
            except (OSError, http.client.HTTPException):
                break
            assert time.monotonic() < until
        assert wait_for_line(caplog) == "everybody else is turned away: 2 connections are open"


def test_without_keys_anybody_comes(tmp_path):
    with ExitStack() as stack:
        place = Place(stack, tmp_path, secure=False)
        assert place.ask() == (200, b"hello")


def test_while_the_superlink_is_down_devices_are_told_to_come_again(place, caplog):
    place.inside.shutdown()
    place.inside.server_close()
    assert place.ask()[0] == 503
    [line] = lines(caplog)
    assert line.startswith("the SuperLink: it cannot be reached")


def test_a_superlink_that_dies_in_between(place):
    assert place.ask("/v1/fleet/die")[0] == 502


def test_the_same_line_is_not_written_again_and_again(place, caplog):
    for _ in range(5):
        place.ask("/v1/control/start-run")
    assert len(lines(caplog)) == 1


def test_many_devices_at_once(place):
    found = []
    threads = [threading.Thread(target=lambda: found.append(place.ask())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(200, b"hello")] * 40
