from __future__ import annotations

import ssl

import pytest

from fedpbc.flower.node import patient

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
