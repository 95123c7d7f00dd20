"""The gateway before the SuperLink: what is forwarded, what is rejected, and what is logged."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import ssl
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.address import LOOPBACK, Address
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.server.connection_slots import ConnectionLimits
from fedpbc.deployment.server.gateway import Gateway, Limits, handshake_failure
from tests.deployment.echo_server import echo_server
from tests.deployment.signatures import private_key, signed
from tests.processes import wait_until


class GatewayThread:
    """Runs a gateway's event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._ready = gateway, threading.Event()
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
            probe.bind((LOOPBACK, 0))
            self.port = probe.getsockname()[1]
        await self._gateway.open(Address(LOOPBACK, self.port))
        self._ready.set()
        await self._ended.wait()
        self._gateway.close()
        for task in list(self._gateway.tasks):
            task.cancel()
        await asyncio.gather(*self._gateway.tasks, return_exceptions=True)
        # Transports are released a little later.
        await asyncio.sleep(0.05)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


class Site:
    """A server, a gateway before it, and a device."""

    def __init__(
        self,
        stack: ExitStack,
        folder,
        *,
        secure: bool = True,
        server_has_tls: bool = True,
        **limits,
    ) -> None:
        certificates = folder / "certificates" if secure else None
        self.keys = folder / "keys"
        if secure:
            make_certificates(certificates, [LOOPBACK], days=3)
        self.certificates = certificates
        make_node_key(self.keys, "client-7")
        self.server = stack.enter_context(echo_server(certificates if server_has_tls else None))
        self.gateway = Gateway(
            Address(LOOPBACK, self.server.server_address[1]),
            Limits(reply=1000, request=600, connections=ConnectionLimits(**limits)),
            certificates=certificates,
            keys=self.keys if secure else None,
        )
        running = GatewayThread(self.gateway)
        stack.callback(running.close)
        self.port = running.port
        self.key = next(iter(KeyDirectory(self.keys).names_by_key())) if secure else ""

    def connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection(LOOPBACK, self.port, timeout=20)
        trust = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        return http.client.HTTPSConnection(LOOPBACK, self.port, context=trust, timeout=20)

    def head(self, name="client-7", **options) -> dict[str, str]:
        """The headers of a device that signs with its key."""
        if self.certificates is None:
            return {}
        names = KeyDirectory(self.keys).names_by_key()
        [public] = [key for key, each in names.items() if each == name]
        return signed(private_key(self.keys / name), public, **options)

    def ask(self, path="/v1/fleet/pull-messages", body=b"hello", method="POST", **headers):
        connection = self.connection()
        try:
            connection.request(method, path, body, {**self.head(), **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def site(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedpbc.deployment")
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def wait_for_line(caplog) -> str:
    until = time.monotonic() + 10
    while not lines(caplog):
        assert time.monotonic() < until
        time.sleep(0.01)
    return lines(caplog)[0]


def test_requests_of_devices_are_forwarded_to_the_byte(site, caplog):
    body = bytes(range(256)) * 2
    connection = site.connection()
    for path in ("/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat"):
        connection.request("POST", path, body, site.head())
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()
    assert site.server.requests == [
        ("/v1/fleet/pull-messages", body),
        ("/v1/fleet/send-node-heartbeat", body),
    ]
    assert site.ask(body=b"chunks") == (200, b"abcde")
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
        ("HEAD", "/v1/fleet/pull-messages"),
    ],
)
def test_no_other_request_passes_even_with_a_key(site, caplog, method, path):
    assert site.ask(path, method=method)[0] == 404
    assert not site.server.requests
    [line] = lines(caplog)
    assert line.startswith(f"rejected client-7 ({LOOPBACK}): {method} '/")
    assert line.endswith(" is not open to devices")


def test_an_unknown_key_is_rejected(site, caplog, tmp_path):
    make_node_key(tmp_path / "other", "client-8")
    [other] = KeyDirectory(tmp_path / "other").names_by_key()
    assert site.ask(**{"flwr-public-key": other})[0] == 401
    assert site.ask(**{"flwr-public-key": ""})[0] == 401
    assert site.ask(**{"flwr-public-key": b64encode(b"nonsense").decode()})[0] == 401
    assert not site.server.requests
    assert lines(caplog) == [
        f"rejected {LOOPBACK}: unknown key",
        f"rejected {LOOPBACK}: no key",
    ]


def test_an_added_key_is_accepted(site, caplog):
    make_node_key(site.keys, "client-8")
    [new] = KeyDirectory(site.keys).names_by_key().keys() - {site.key}
    time.sleep(1.1)
    assert new != site.key
    assert site.ask(**site.head("client-8")) == (200, b"hello")


def test_a_deleted_key_is_rejected_also_on_an_open_connection(site, caplog):
    connection = site.connection()
    responses = []
    head = site.head()
    for path in ("/v1/fleet/activate-node", "/v1/fleet/pull-messages"):
        connection.request("POST", path, b"hello", head)
        response = connection.getresponse()
        responses.append((response.status, response.read()))
        (site.keys / "client-7.pub").unlink(missing_ok=True)
        time.sleep(1.1)
    connection.close()
    assert responses == [(200, b"hello"), (401, b"unknown key")]
    assert [path for path, _ in site.server.requests] == ["/v1/fleet/activate-node"]


def test_a_key_that_the_server_rejects_is_logged(site, caplog):
    assert site.ask(body=b"refuse")[0] == 401
    assert lines(caplog) == [
        f"rejected client-7 ({LOOPBACK}): key or clock not accepted by the server (status 401)"
    ]


def test_plain_http_is_rejected(site, caplog):
    plain = http.client.HTTPConnection(LOOPBACK, site.port, timeout=20)
    plain.request("POST", "/v1/fleet/pull-messages", b"hello")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    plain.close()
    line = wait_for_line(caplog)
    assert line == f"rejected {LOOPBACK}: plain HTTP without TLS"


def test_a_device_that_trusts_another_authority_is_logged(site, caplog, tmp_path):
    make_certificates(tmp_path / "others", [LOOPBACK])
    trust = ssl.create_default_context(cafile=tmp_path / "others/ca.crt")
    other = http.client.HTTPSConnection(LOOPBACK, site.port, context=trust, timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        other.request("POST", "/v1/fleet/pull-messages", b"hello")
    other.close()
    line = wait_for_line(caplog)
    assert line.startswith(
        f"rejected {LOOPBACK}: the device does not trust the server's certificate"
    )


def test_a_slow_handshake_has_its_own_reason():
    assert handshake_failure(TimeoutError()) == "no TLS handshake within 20 seconds"


def test_an_expired_certificate_is_logged(tmp_path, caplog, long_ago):
    with ExitStack() as stack:
        site = Site(stack, tmp_path, server_has_tls=False)
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            site.ask()
        line = wait_for_line(caplog)
    assert line == (
        f"rejected {LOOPBACK}: the device reports that the server's certificate has expired"
    )


def test_a_large_request_is_rejected(site, caplog):
    assert site.ask("/v1/fleet/push-object", bytes(601))[0] == 413
    assert site.ask("/v1/fleet/push-messages", bytes(601))[0] == 413
    assert site.ask("/v1/fleet/pull-messages", bytes(2**16 + 1))[0] == 413
    assert not site.server.requests
    assert lines(caplog) == [
        f"rejected client-7 ({LOOPBACK}): request of 601 bytes, but at most 600 pass",
        f"rejected client-7 ({LOOPBACK}): request of 65,537 bytes, but at most 65,536 pass",
    ]


def test_a_request_must_be_signed_by_its_key(site, caplog, tmp_path):
    """Who knows a device's public key can neither send bodies nor write lines in its name."""
    make_node_key(tmp_path / "other", "client-9")
    forged = signed(private_key(tmp_path / "other/client-9"), site.key)
    assert site.ask("/v1/fleet/push-object", bytes(500), **forged)[0] == 401
    unsigned = site.connection()
    unsigned.request("POST", "/v1/fleet/pull-messages", b"a", {"flwr-public-key": site.key})
    assert unsigned.getresponse().status == 401
    unsigned.close()
    assert not site.server.requests
    assert lines(caplog) == [
        f"rejected {LOOPBACK}: the signature does not match the key",
        f"rejected {LOOPBACK}: not signed by a node",
    ]


@pytest.mark.parametrize(("ahead", "side"), [(-400.0, "400 s behind"), (60.0, "60 s ahead of")])
def test_a_wrong_clock_is_named(site, caplog, ahead, side):
    assert site.ask(**site.head(ahead=ahead))[0] == 401
    assert lines(caplog) == [f"rejected {LOOPBACK}: signed {side} the server's clock"]


def test_a_connection_belongs_to_one_key(site, caplog):
    """Only the first request is verified, so a second key must not follow."""
    make_node_key(site.keys, "client-8")
    time.sleep(1.1)
    connection = site.connection()
    for name, status in (("client-7", 200), ("client-8", 401)):
        connection.request("POST", "/v1/fleet/pull-messages", b"hello", site.head(name))
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (status, True)
    connection.close()
    assert lines(caplog) == [f"rejected client-7 ({LOOPBACK}): a second key on the same connection"]


def test_bytes_are_counted_by_key_and_hour(site, caplog, monkeypatch):
    make_node_key(site.keys, "client-8")
    time.sleep(1.1)
    monkeypatch.setattr("fedpbc.deployment.server.upload_budget.BASE", 3000)
    assert site.ask("/v1/fleet/push-object", bytes(600))[0] == 200
    assert site.ask("/v1/fleet/push-object", bytes(600))[0] == 429
    assert site.ask("/v1/fleet/push-object", bytes(600), **site.head("client-8"))[0] == 200
    [line] = lines(caplog)
    assert line == f"rejected client-7 ({LOOPBACK}): more than 3,000 bytes in an hour"
    # A message asks for a reply.
    assert site.ask("/v1/fleet/pull-messages", b"a message")[0] == 200
    assert site.ask("/v1/fleet/push-object", bytes(600))[0] == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (
            b"POST /v1/fleet/pull-messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            411,
        ),
        (
            b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\n"
            b"Content-Length: 1\r\ncontent-length: 2\r\n\r\nab",
            400,
        ),
        (b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\na", 400),
        (
            b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nx: a\nContent-Length: 5\r\n\r\n",
            400,
        ),
        # What the SuperLink's parser could read as two lines, or as two requests.
        (b"POST /v1/fleet/x\nContent-Length:90\r\nConnection: keep-alive\r\n\r\n", 400),
        (b"POST /v1/fleet/x\n\nPOST /v1/control/start-run HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nA: b\rContent-Length: 5\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nA: b\x00\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\n folded: 5\r\n\r\n", 400),
        (b"POST /v1/fleet/x HTTP/0.9\r\n\r\n", 404),
        (b"POST /v1/fleet/x HTTP/1.0\r\n\r\n", 404),
        (b"POST /v1/fleet/x\r\n\r\n", 400),
        (b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", 400),
        (b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n", 400),
        (
            b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\n"
            b"flwr-public-key: a\r\nFlwr-Public-Key: b\r\n\r\n",
            400,
        ),
        (
            b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n",
            400,
        ),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"POST /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"POST /" + b"a" * 200_000, 431),
    ],
)
def test_malformed_and_ambiguous_requests_are_rejected(tmp_path, caplog, head, status):
    with ExitStack() as stack:
        site = Site(stack, tmp_path, secure=False)
        with socket.create_connection((LOOPBACK, site.port), timeout=20) as raw:
            # A head that is far too long is rejected, and the connection closed, before its end.
            with suppress(OSError):
                raw.sendall(head)
                raw.shutdown(socket.SHUT_WR)
            status_line = raw.makefile("rb").readline()
        assert status_line.startswith(f"HTTP/1.1 {status} ".encode())
        assert not site.server.requests


def test_pipelined_requests_and_the_end_of_a_connection(tmp_path):
    request = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n%s\r\n%s"
    with ExitStack() as stack:
        site = Site(stack, tmp_path, secure=False)
        with socket.create_connection((LOOPBACK, site.port), timeout=20) as raw:
            raw.sendall(request % (b"", b"ab") + request % (b"Connection: close\r\n", b"cd"))
            received = raw.makefile("rb").read()
        assert site.server.requests == [
            ("/v1/fleet/pull-messages", b"ab"),
            ("/v1/fleet/pull-messages", b"cd"),
        ]
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.endswith(b"\r\n\r\ncd")


def test_the_head_is_rebuilt_for_the_superlink(site):
    site.ask(**{"X-Forwarded-For": "10.0.0.1", "Cookie": "a"})
    [head] = site.server.heads
    assert {name.lower() for name in head} == {
        "host",
        "content-length",
        "accept-encoding",
        "flwr-public-key",
        "flwr-timestamp",
        "flwr-signature",
        "content-type",
    }
    assert head["host"] == "superlink"


def test_connections_without_a_key_make_room_for_devices(tmp_path, caplog):
    with ExitStack() as stack:
        site = Site(stack, tmp_path, per_address=3)
        for _ in range(20):
            idle = socket.create_connection((LOOPBACK, site.port), timeout=20)
            stack.callback(idle.close)
        for _ in range(5):
            assert site.ask() == (200, b"hello")
        line = f"rejected {LOOPBACK}: too many connections that have shown no key"
        assert lines(caplog) == [line]
        wait_until(lambda: len(site.gateway.tasks) <= 4)


def test_a_key_has_few_connections(tmp_path, caplog):
    with ExitStack() as stack:
        site = Site(stack, tmp_path, per_key=2)
        held = [site.connection() for _ in range(3)]
        for connection in held:
            stack.callback(connection.close)
            connection.request("POST", "/v1/fleet/pull-messages", b"hello", site.head())
            assert connection.getresponse().read() == b"hello"
        # The oldest was closed, the others work.
        assert held[0].sock.recv(1) == b""
        for connection in held[1:]:
            connection.request("POST", "/v1/fleet/pull-messages", b"again", site.head())
            assert connection.getresponse().read() == b"again"
        line = f"rejected client-7 ({LOOPBACK}): too many connections with its key"
        assert lines(caplog) == [line]


def test_without_keys_every_device_is_accepted(tmp_path):
    with ExitStack() as stack:
        site = Site(stack, tmp_path, secure=False)
        assert site.ask() == (200, b"hello")


def test_while_the_server_is_down_devices_get_503(site, caplog):
    site.server.shutdown()
    site.server.server_close()
    assert site.ask()[0] == 503
    [line] = lines(caplog)
    assert line.startswith("the server cannot be reached: it is not running, or is still starting")


def test_a_server_that_dies_during_a_request_is_a_502(site):
    assert site.ask(body=b"die")[0] == 502


def test_the_same_line_is_not_logged_repeatedly(site, caplog):
    for _ in range(5):
        site.ask("/v1/control/start-run")
    assert len(lines(caplog)) == 1


def test_many_paths_are_few_lines(site, caplog):
    for number in range(50):
        assert site.ask(f"/v1/fleet/x{number}")[0] == 404
    assert len(lines(caplog)) == 5


def test_many_requests_at_once(tmp_path):
    with ExitStack() as stack:
        check_many_requests(Site(stack, tmp_path, per_key=40))


def check_many_requests(site):
    responses = []
    threads = [threading.Thread(target=lambda: responses.append(site.ask())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert responses == [(200, b"hello")] * 40
