from __future__ import annotations

import ssl
from importlib import import_module
from itertools import islice

import pytest

from fedpbc.deployment.device.supernode import exit_code, main, patched, retrying

httpx = pytest.importorskip("httpx", reason="needs the extra: pip install 'fedpbc[flower]'")


RULE = retrying(lambda error: True)


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation"),
        httpx.ReadError("[SSL: WRONG_VERSION_NUMBER] tls"),
        httpx.ReadTimeout("the TLS handshake timed out"),
        httpx.RemoteProtocolError("Server disconnected"),
    ],
)
def test_broken_connections_are_retried(error):
    assert not RULE(error)


def test_a_wrong_certificate_is_not_retried():
    assert RULE(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"))
    wrapped = httpx.ConnectError("")
    wrapped.__cause__ = ssl.SSLCertVerificationError("expired")
    assert RULE(wrapped)


@pytest.mark.parametrize("gives_up", [True, False])
def test_flower_decides_about_other_errors(gives_up):
    request = httpx.Request("POST", "http://h")
    error = httpx.HTTPStatusError(
        "", request=request, response=httpx.Response(401, request=request)
    )
    assert retrying(lambda error: gives_up)(error) is gives_up


def test_flowers_retry_invoker_is_patched():
    """On Flower's own factory, so that a change in Flower is noticed."""
    pytest.importorskip("flwr")
    from flwr.supernode import fleet_http_connection

    theirs = fleet_http_connection.make_simple_http_retry_invoker
    broken = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING]")
    assert theirs().should_giveup(broken)
    assert max(islice(theirs().wait_gen_factory(), 20)) > 15
    ours = patched(theirs)()
    assert not ours.should_giveup(broken)
    waits = list(islice(ours.wait_gen_factory(), 20))
    assert waits[0] <= 1
    assert max(waits) == 3


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (SystemExit(305), 305, ""),
        (SystemExit(), 0, ""),
        (SystemExit("no such key"), 1, "no such key\n"),
        (ValueError("no such key"), 1, "ValueError: no such key\n"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
        (None, 1, ""),
    ],
)
def test_it_exits_with_a_status_and_prints_why(capsys, error, code, printed):
    def run():
        if error is not None:
            raise error

    assert exit_code(run) == code
    err = capsys.readouterr().err
    assert err.endswith(printed)
    assert ("Traceback" in err) == isinstance(error, (ValueError, KeyboardInterrupt))
    if not printed:
        assert not err


def test_the_process_exits_with_its_reason(monkeypatch, capsys):
    pytest.importorskip("flwr")
    from flwr.supernode import fleet_http_connection

    # A function of the same name hides the module.
    theirs = import_module("flwr.supernode.cli.flower_supernode")

    def broken():
        raise RuntimeError("broken")

    statuses = []
    # Restored afterwards.
    original = fleet_http_connection.make_simple_http_retry_invoker
    monkeypatch.setattr(fleet_http_connection, "make_simple_http_retry_invoker", original)
    monkeypatch.setattr(theirs, "flower_supernode", broken)
    monkeypatch.setattr("fedpbc.deployment.device.supernode.os._exit", statuses.append)
    main()
    assert statuses == [1]
    assert "RuntimeError: broken" in capsys.readouterr().err
