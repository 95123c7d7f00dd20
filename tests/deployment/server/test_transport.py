"""Replies over Flower's grid: nobody is held up by another's."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.protocol.records import to_records
from fedpbc.deployment.server.transport import FlowerTransport


class SuperLink:
    """Answers as Flower's does."""

    def __init__(self) -> None:
        self.replies: dict[str, Message] = {}
        self.objects: dict[str, bytes] = {}
        self.asked_after: list[set[str]] = []
        self.received: list[str] = []

    def PullMessages(self, asked):
        self.asked_after.append(set(asked.message_ids))
        found = [self.replies.pop(name) for name in asked.message_ids if name in self.replies]
        return SimpleNamespace(
            messages_list=[message_to_proto(message) for message in found],
            message_object_trees=[get_object_tree(message) for message in found],
        )

    def PullObject(self, asked):
        content = self.objects.get(asked.object_id)
        return SimpleNamespace(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, asked):
        self.received.append(asked.message_object_id)


class FakeGrid(HttpGrid):
    def __init__(self) -> None:
        super().__init__(token="t")
        self.superlink, self.online, self.pushed = SuperLink(), [901, 902], []

    @property
    def _runtime_client(self):
        return self.superlink

    def get_node_ids(self):
        return self.online

    def push_messages(self, messages):
        [message] = messages
        self.pushed.append(message)
        name = f"m{len(self.pushed)}"
        message.metadata.__dict__["_message_id"] = name
        return [name]

    def answer(self, name: str, content, *, leave_out: bool = False, spoil: bool = False) -> None:
        """A reply is announced; its objects come too, unless they are left out or spoilt."""
        asked = self.pushed[int(name[1:]) - 1]
        if isinstance(content, Error):
            reply = Message(content, reply_to=asked)
        else:
            reply = Message(content, reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = get_all_nested_objects(reply)
        self.superlink.replies[name] = reply
        for key, part in parts.items():
            if not leave_out:
                whole = part.deflate()
                head = whole.index(b"\0") + 1 if b"\0" in whole else len(whole)
                self.superlink.objects[key] = whole[:head] + b"\xff" * 20 if spoil else whole


@pytest.fixture
def grid(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return FakeGrid()


def collected(post: FlowerTransport, names, count: int, seconds: float = 5.0):
    found, until = [], time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, found
        found += post.collect(names)
        time.sleep(0.01)
    return {reply.message: reply for reply in found}


HELLO = Payload({"kind": "hello", "job": "j"})


def test_a_reply_that_never_comes_holds_up_nobody(grid):
    post = FlowerTransport(grid)
    names = [post.send(node, HELLO, 3.0) for node in (901, 902)]
    grid.answer(names[0], to_records(HELLO), leave_out=True)
    grid.answer(names[1], to_records(HELLO))
    began = time.monotonic()
    found = collected(post, names, 1)
    assert time.monotonic() - began < 2
    assert found[names[1]].parcel.kind == "hello"
    assert found[names[1]].node == 902
    # It is given up when its message ends, and the SuperLink need not keep it.
    late = collected(post, names, 1, seconds=15.0)[names[0]]
    assert late.parcel is None
    assert not late.lost
    assert "cannot be read" in late.error
    assert len(grid.superlink.received) == 2


@pytest.mark.parametrize("content", [RecordDict(), None])
def test_a_spoilt_reply_is_said_of_its_sender(grid, content):
    post = FlowerTransport(grid)
    names = [post.send(node, HELLO, 3.0) for node in (901, 902)]
    if content is None:
        grid.answer(names[0], to_records(HELLO), spoil=True)
    else:
        grid.answer(names[0], content)
    grid.answer(names[1], to_records(HELLO))
    found = collected(post, names, 2, seconds=15.0)
    assert found[names[0]].parcel is None
    assert found[names[0]].node == 901
    assert found[names[0]].error
    assert "\n" not in found[names[0]].error
    assert found[names[1]].parcel.kind == "hello"


def test_nobody_asks_after_a_node_that_is_offline(grid, monkeypatch):
    monkeypatch.setattr("fedpbc.deployment.server.transport.LIST_SECONDS", 0.0)
    post = FlowerTransport(grid)
    names = [post.send(node, HELLO, 30.0) for node in (901, 902)]
    grid.online = [902]
    post.collect(names)
    assert grid.superlink.asked_after == [{names[1]}]
    grid.online = [901, 902]
    post.collect(names)
    assert grid.superlink.asked_after[-1] == set(names)


@pytest.mark.parametrize(
    ("code", "lost"),
    [(ErrorCode.NODE_UNAVAILABLE, True), (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, False)],
)
def test_what_the_superlink_only_guesses_may_be_sent_again(grid, code, lost):
    post = FlowerTransport(grid)
    name = post.send(901, HELLO, 3.0)
    grid.answer(name, Error(code, "because\nof this"))
    reply = collected(post, [name], 1)[name]
    assert reply.lost is lost
    assert reply.error == f"because of this (code {code})"


def test_a_reply_is_given_once(grid):
    post = FlowerTransport(grid)
    name = post.send(901, HELLO, 3.0)
    grid.answer(name, to_records(HELLO))
    collected(post, [name], 1)
    grid.answer(name, to_records(HELLO))
    # Flower gives a reply once; if it came twice, the round's own book would know.
    assert [r.message for r in collected(post, [name], 1).values()] == [name]
