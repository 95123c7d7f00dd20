"""Messages and replies between the round loop and the Fleet API."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.server.mailbox import Mailbox, UnexpectedReplyError

HELLO, REPLY = Payload({"kind": "hello"}), Payload({"kind": "answer"})


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def mailbox(clock):
    return Mailbox(clock)


def test_a_message_is_replied_to_once(mailbox):
    name = mailbox.send(7, HELLO, 60.0)
    message = mailbox.fetch(7)
    assert message.payload is HELLO
    for _ in range(2):
        mailbox.reply(mailbox.message_for(name, 7), REPLY)
    [reply] = mailbox.collect([name])
    assert (reply.message, reply.node, reply.payload) == (name, 7, REPLY)
    assert mailbox.collect([name]) == []
    assert mailbox.fetch(7) is None


def test_a_message_that_was_lost_on_the_way_is_fetched_again(mailbox, clock):
    name = mailbox.send(7, HELLO, 60.0)
    assert mailbox.fetch(7).name == name
    assert mailbox.fetch(7) is None
    assert mailbox.seconds_until_due(7) == 3.0
    clock.now += 3.0
    assert mailbox.fetch(7).name == name
    # Less and less often: a device that cannot reply must not fetch it for ever.
    assert mailbox.seconds_until_due(7) == 6.0
    clock.now += 57.0
    assert mailbox.fetch(7) is None
    assert mailbox.seconds_until_due(7) == float("inf")


def test_only_the_node_that_was_asked_may_reply(mailbox):
    name = mailbox.send(7, HELLO, 60.0)
    with pytest.raises(UnexpectedReplyError, match="replies for node 7"):
        mailbox.message_for(name, 8)
    with pytest.raises(UnexpectedReplyError, match="replies to no message"):
        mailbox.message_for("other", 7)
    assert mailbox.fetch(8) is None
    mailbox.reply(mailbox.message_for(name, 7), REPLY)
    assert [reply.node for reply in mailbox.collect([name])] == [7]


def test_a_late_reply_is_passed_on_while_it_is_asked_for(mailbox, clock):
    name = mailbox.send(7, HELLO, 60.0)
    clock.now += 61.0
    assert mailbox.collect([name]) == []
    mailbox.reply(mailbox.message_for(name, 7), REPLY)
    assert [reply.message for reply in mailbox.collect([name])] == [name]
    mailbox.collect([])
    with pytest.raises(UnexpectedReplyError):
        mailbox.message_for(name, 7)


def test_a_newer_message_replaces_one_that_was_not_fetched(mailbox):
    old = mailbox.send(7, HELLO, 60.0)
    new = mailbox.send(7, HELLO, 60.0)
    assert mailbox.fetch(7).name == new
    # Its reply may still come.
    assert mailbox.message_for(old, 7).name == old


def test_nodes_are_online_for_a_while_after_they_were_heard(mailbox, clock):
    mailbox.mark_online(7)
    mailbox.mark_online(8)
    mailbox.leave(8)
    assert list(mailbox.nodes()) == [7]
    clock.now += 44.0
    assert list(mailbox.nodes()) == [7]
    clock.now += 1.0
    assert list(mailbox.nodes()) == []


def test_sending_wakes_the_node(mailbox):
    woken = []
    mailbox.on_send = woken.append
    mailbox.send(7, HELLO, 60.0)
    assert woken == [7]
