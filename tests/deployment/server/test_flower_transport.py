"""Replies over Flower's grid: none delays another."""

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
from fedpbc.deployment.server.flower_transport import FlowerTransport


class SuperLink:
    """Responds as Flower's does."""

    def __init__(self) -> None:
        self.replies: dict[str, Message] = {}
        self.objects: dict[str, bytes] = {}
        self.polled: list[set[str]] = []
        self.received: list[str] = []

    def PullMessages(self, request):
        self.polled.append(set(request.message_ids))
        replies = [self.replies.pop(name) for name in request.message_ids if name in self.replies]
        return SimpleNamespace(
            messages_list=[message_to_proto(message) for message in replies],
            message_object_trees=[get_object_tree(message) for message in replies],
        )

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        return SimpleNamespace(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):
        self.received.append(request.message_object_id)


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

    def reply(self, name: str, content, *, omit: bool = False, corrupt: bool = False) -> None:
        """Announce a reply; its objects follow, unless they are left out or corrupted."""
        reply = Message(content, reply_to=self.pushed[int(name[1:]) - 1])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = get_all_nested_objects(reply)
        self.superlink.replies[name] = reply
        for key, part in parts.items():
            if not omit:
                data = part.deflate()
                head = data.index(b"\0") + 1 if b"\0" in data else len(data)
                self.superlink.objects[key] = data[:head] + b"\xff" * 20 if corrupt else data


@pytest.fixture
def grid(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return FakeGrid()


def collected(transport: FlowerTransport, names, count: int, seconds: float = 5.0):
    replies, until = [], time.monotonic() + seconds
    while len(replies) < count:
        assert time.monotonic() < until, replies
        replies += transport.collect(names)
        time.sleep(0.01)
    return {reply.message: reply for reply in replies}


HELLO = Payload({"kind": "hello", "job": "j"})


def test_a_reply_that_never_arrives_delays_no_other(grid):
    transport = FlowerTransport(grid)
    names = [transport.send(node, HELLO, 3.0) for node in (901, 902)]
    grid.reply(names[0], to_records(HELLO), omit=True)
    grid.reply(names[1], to_records(HELLO))
    began = time.monotonic()
    replies = collected(transport, names, 1)
    assert time.monotonic() - began < 2
    assert replies[names[1]].payload.kind == "hello"
    assert replies[names[1]].node == 902
    # It is given up when the message expires, and the SuperLink may delete it.
    late = collected(transport, names, 1, seconds=15.0)[names[0]]
    assert late.payload is None
    assert not late.lost
    assert "unreadable reply" in late.error
    assert len(grid.superlink.received) == 2


@pytest.mark.parametrize("content", [RecordDict(), None])
def test_a_corrupt_reply_concerns_its_sender_alone(grid, content):
    transport = FlowerTransport(grid)
    names = [transport.send(node, HELLO, 3.0) for node in (901, 902)]
    if content is None:
        grid.reply(names[0], to_records(HELLO), corrupt=True)
    else:
        grid.reply(names[0], content)
    grid.reply(names[1], to_records(HELLO))
    replies = collected(transport, names, 2, seconds=15.0)
    assert replies[names[0]].payload is None
    assert replies[names[0]].node == 901
    assert replies[names[0]].error
    assert "\n" not in replies[names[0]].error
    assert replies[names[1]].payload.kind == "hello"


def test_messages_of_offline_nodes_are_not_polled(grid, monkeypatch):
    monkeypatch.setattr("fedpbc.deployment.server.flower_transport.LIST_SECONDS", 0.0)
    transport = FlowerTransport(grid)
    names = [transport.send(node, HELLO, 30.0) for node in (901, 902)]
    grid.online = [902]
    transport.collect(names)
    assert grid.superlink.polled == [{names[1]}]
    grid.online = [901, 902]
    transport.collect(names)
    assert grid.superlink.polled[-1] == set(names)


@pytest.mark.parametrize(
    ("code", "lost"),
    [(ErrorCode.NODE_UNAVAILABLE, True), (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, False)],
)
def test_a_message_that_the_superlink_reports_as_undelivered_is_lost(grid, code, lost):
    transport = FlowerTransport(grid)
    name = transport.send(901, HELLO, 3.0)
    grid.reply(name, Error(code, "because\nof this"))
    reply = collected(transport, [name], 1)[name]
    assert reply.lost is lost
    assert reply.error == f"because of this (code {code})"


def test_a_reply_is_collected_once(grid):
    transport = FlowerTransport(grid)
    name = transport.send(901, HELLO, 3.0)
    grid.reply(name, to_records(HELLO))
    collected(transport, [name], 1)
    grid.reply(name, to_records(HELLO))
    # Flower delivers a reply once; RoundState ignores a second one.
    assert [r.message for r in collected(transport, [name], 1).values()] == [name]
