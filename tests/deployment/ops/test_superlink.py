"""Registering the devices' keys with the SuperLink."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

import httpx

from fedpbc.deployment.address import Address
from fedpbc.deployment.ops.flower_commands import FlowerCommands
from fedpbc.deployment.ops.superlink import SuperLinkControl
from fedpbc.errors import FedpbcError


class SuperLink:
    """Like Flower's: an unregistered key stays in use for ever."""

    def __init__(self, unregistered=(), answer=None):
        self.nodes = {key: 100 + k for k, key in enumerate(unregistered)}
        self.unregistered, self.requested, self.down = set(unregistered), [], False
        self.answer = answer or httpx.Response(412, json={"detail": "Public key already in use."})

    def ListNodes(self, _):
        if self.down:
            raise httpx.ConnectError("refused")
        listed = [
            SimpleNamespace(
                public_key=k, node_id=n, unregistered_at="now" if k in self.unregistered else ""
            )
            for k, n in self.nodes.items()
        ]
        return SimpleNamespace(nodes_info=listed)

    def RegisterNode(self, request):
        key = bytes(request.public_key)
        self.requested.append(key)
        if key in self.nodes:
            self.answer.request = httpx.Request("POST", "http://h")
            self.answer.raise_for_status()
        self.nodes[key] = 100 + len(self.nodes)
        return SimpleNamespace(node_id=self.nodes[key])

    def close(self):
        pass


@pytest.fixture
def control(tmp_path):
    return SuperLinkControl(FlowerCommands(tmp_path, Address("127.0.0.1", 1), insecure=True))


def use(monkeypatch, control, link):
    monkeypatch.setattr(control, "_connect", lambda: link)
    return link


def test_a_key_that_is_deleted_and_restored_is_the_same_node(monkeypatch, control):
    use(monkeypatch, control, SuperLink())
    both = {b"a": 0, b"b": 1}
    first = control.register(both)
    assert sorted(first.values()) == [0, 1]
    # No client is pinned to a deleted key.
    assert list(control.register({b"a": 0}).values()) == [0]
    assert control.register(both) == first


def test_a_rejected_key_is_one_warning_and_does_not_block_the_rest(monkeypatch, control, caplog):
    link = use(monkeypatch, control, SuperLink(unregistered=[b"b"]))
    began = time.monotonic()
    assert list(control.register({b"a": 0, b"b": 7}).values()) == [0]
    assert time.monotonic() - began < 5
    assert sorted(control.register({b"a": 0, b"b": 7, b"c": 2}).values()) == [0, 2]
    assert caplog.messages == [
        "the SuperLink rejects client-7.pub (Public key already in use): make a new key with "
        "'fedpbc fleet add … --replace 7'"
    ]
    assert link.requested.count(b"b") == 1


def test_a_rejection_without_a_reason(monkeypatch, control, caplog):
    use(monkeypatch, control, SuperLink(unregistered=[b"b"], answer=httpx.Response(400, text="no")))
    assert control.register({b"b": 7}) == {}
    assert "rejects client-7.pub (status 400)" in caplog.text


@pytest.mark.parametrize("what", ["down", "failing"])
def test_a_superlink_that_is_down_or_failing_is_retried(monkeypatch, control, caplog, what):
    link = SuperLink(unregistered=[b"b"], answer=httpx.Response(500))
    use(monkeypatch, control, link).down = what == "down"
    with pytest.raises(FedpbcError, match="the SuperLink does not answer"):
        control.register({b"b": 0}, timeout=0.2)
    link.down, link.nodes = False, {}
    caplog.set_level(logging.WARNING)
    assert list(control.register({b"b": 0}).values()) == [0]
    assert not caplog.messages
