from __future__ import annotations

import ssl
from importlib import import_module
from itertools import islice

import pytest

from fedpbc.deployment.device.supernode import exit_code, main, mended, patient

httpx = pytest.importorskip("httpx", reason="needs the extra: pip install 'fedpbc[flower]'")


RULE = patient(lambda error: True)


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation"),
        httpx.ReadError("[SSL: WRONG_VERSION_NUMBER] tls"),
        httpx.ReadTimeout("the TLS handshake timed out"),
        httpx.RemoteProtocolError("Server disconnected"),
    ],
)
def test_a_connection_that_broke_is_no_reason_to_give_up(error):
    assert not RULE(error)


def test_a_wrong_certificate_is():
    assert RULE(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"))
    wrapped = httpx.ConnectError("")
    wrapped.__cause__ = ssl.SSLCertVerificationError("expired")
    assert RULE(wrapped)


@pytest.mark.parametrize("answer", [True, False])
def test_of_anything_else_flower_decides(answer):
    asked = httpx.Request("POST", "http://h")
    error = httpx.HTTPStatusError("", request=asked, response=httpx.Response(401, request=asked))
    assert patient(lambda error: answer)(error) is answer


def test_flower_itself_is_mended():
    """Its own rule, so that a change of Flower's would be seen here."""
    pytest.importorskip("flwr")
    from flwr.supernode import fleet_http_connection

    theirs = fleet_http_connection.make_simple_http_retry_invoker
    broken = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING]")
    assert theirs().should_giveup(broken)
    assert max(islice(theirs().wait_gen_factory(), 20)) > 15
    ours = mended(theirs)()
    assert not ours.should_giveup(broken)
    waits = list(islice(ours.wait_gen_factory(), 20))
    assert waits[0] <= 1
    assert max(waits) == 3


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (SystemExit(305), 305, ""),
        (SystemExit(), 0, ""),
        (SystemExit("no such key"), 1, "no such key\n"),
        (ValueError("no such key"), 1, "ValueError: no such key\n"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
        (None, 1, ""),
    ],
)
def test_its_end_is_an_end_and_says_why(capsys, end, code, said):
    def run():
        if end is not None:
            raise end

    assert exit_code(run) == code
    err = capsys.readouterr().err
    assert err.endswith(said)
    assert ("Traceback" in err) == isinstance(end, (ValueError, KeyboardInterrupt))
    if not said:
        assert not err


def test_the_process_itself_ends_with_its_reason(monkeypatch, capsys):
    pytest.importorskip("flwr")
    from flwr.supernode import fleet_http_connection

    # A function of the same name hides the module.
    theirs = import_module("flwr.supernode.cli.flower_supernode")

    def broken():
        raise RuntimeError("out of order")

    ended = []
    # Put back afterwards.
    kept = fleet_http_connection.make_simple_http_retry_invoker
    monkeypatch.setattr(fleet_http_connection, "make_simple_http_retry_invoker", kept)
    monkeypatch.setattr(theirs, "flower_supernode", broken)
    monkeypatch.setattr("fedpbc.deployment.device.supernode.os._exit", ended.append)
    main()
    assert ended == [1]
    assert "RuntimeError: out of order" in capsys.readouterr().err
