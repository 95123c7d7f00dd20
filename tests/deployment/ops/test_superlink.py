"""What the launcher tells the SuperLink about keys."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

import httpx

from fedpbc.deployment.ops.launch import Launch
from fedpbc.deployment.ops.superlink import SuperLinkControl
from fedpbc.errors import FedpbcError


class SuperLink:
    """As Flower's is: a key that was unregistered once is in use for ever."""

    def __init__(self, gone=(), answers=None):
        self.nodes = {key: 100 + k for k, key in enumerate(gone)}
        self.gone, self.asked, self.down = set(gone), [], False
        self.answer = answers or httpx.Response(412, json={"detail": "Public key already in use."})

    def ListNodes(self, _):
        if self.down:
            raise httpx.ConnectError("refused")
        listed = [
            SimpleNamespace(
                public_key=k, node_id=n, unregistered_at="now" if k in self.gone else ""
            )
            for k, n in self.nodes.items()
        ]
        return SimpleNamespace(nodes_info=listed)

    def RegisterNode(self, request):
        key = bytes(request.public_key)
        self.asked.append(key)
        if key in self.nodes:
            self.answer.request = httpx.Request("POST", "http://h")
            self.answer.raise_for_status()
        self.nodes[key] = 100 + len(self.nodes)
        return SimpleNamespace(node_id=self.nodes[key])

    def close(self):
        pass


@pytest.fixture
def control(tmp_path):
    return SuperLinkControl(Launch(tmp_path, "127.0.0.1", 1, insecure=True))


def use(monkeypatch, control, link):
    monkeypatch.setattr(control, "_client", lambda: link)
    return link


def test_a_key_that_is_gone_and_comes_back_is_the_same_node(monkeypatch, control):
    use(monkeypatch, control, SuperLink())
    both = {b"a": 0, b"b": 1}
    first = control.register(both)
    assert sorted(first.values()) == [0, 1]
    # Nobody is pinned to a key that is gone.
    assert list(control.register({b"a": 0}).values()) == [0]
    assert control.register(both) == first


def test_a_key_that_can_never_come_back_is_one_warning_and_the_rest_go_on(
    monkeypatch, control, caplog
):
    link = use(monkeypatch, control, SuperLink(gone=[b"b"]))
    began = time.monotonic()
    assert list(control.register({b"a": 0, b"b": 7}).values()) == [0]
    assert time.monotonic() - began < 5
    assert sorted(control.register({b"a": 0, b"b": 7, b"c": 2}).values()) == [0, 2]
    assert caplog.messages == [
        "client-7.pub is not accepted (Public key already in use): client 7 needs a new key: "
        "'fedpbc fleet add … --replace 7'"
    ]
    assert link.asked.count(b"b") == 1


def test_an_answer_without_a_reason(monkeypatch, control, caplog):
    use(monkeypatch, control, SuperLink(gone=[b"b"], answers=httpx.Response(400, text="no")))
    assert control.register({b"b": 7}) == {}
    assert "client-7.pub is not accepted (status 400)" in caplog.text


@pytest.mark.parametrize("what", ["down", "ill"])
def test_a_superlink_that_is_away_or_ill_is_asked_again(monkeypatch, control, caplog, what):
    link = SuperLink(gone=[b"b"], answers=httpx.Response(500))
    use(monkeypatch, control, link).down = what == "down"
    with pytest.raises(FedpbcError, match="the SuperLink does not answer"):
        control.register({b"b": 0}, patience=0.2)
    link.down, link.nodes = False, {}
    caplog.set_level(logging.WARNING)
    assert list(control.register({b"b": 0}).values()) == [0]
    assert not caplog.messages
