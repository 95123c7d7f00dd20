"""The calls of devices: who may call, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import Message, Metadata, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node

from fedpbc.deployment.protocol import flower_messages
from fedpbc.deployment.protocol.flower_messages import pack, piece_name, pieces_of, unpack
from fedpbc.deployment.protocol.messages import Payload, Vector
from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.node_identity import node_number
from fedpbc.deployment.server.fleet_api import FleetApi, RefusedCallError
from fedpbc.deployment.server.mailbox import Mailbox

WORK = Payload({"kind": "work"}, {"start": Vector("float32", bytes(400))})
ANSWER = Payload({"kind": "answer"}, {"upload model": Vector("float32", bytes(400))})


class Device:
    """Signs as Flower's nodes do, and calls the API."""

    def __init__(self, api, behind=timedelta(0)):
        self.api, self._behind = api, behind
        self.private = generate_private_key(SECP384R1())
        public = self.private.public_key()
        self.key = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.ssh = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.node = Node(node_id=node_number(self.key))

    def headers(self):
        now = (datetime.now(UTC) - self._behind).isoformat().encode()
        return {
            b"flwr-public-key": b64encode(self.key),
            b"flwr-timestamp": now,
            b"flwr-signature": b64encode(self.private.sign(now, ECDSA(SHA256()))),
        }

    async def call(self, name, request, **headers):
        extra = {key.replace("_", "-").encode(): value for key, value in headers.items()}
        body = request.SerializeToString()
        return await self.api.call(f"/v1/fleet/{name}".encode(), self.headers() | extra, body)

    async def pull(self, wait=b"0"):
        body = await self.call(
            "pull-messages", PullMessagesRequest(node=self.node), fedpbc_wait=wait
        )
        return PullMessagesResponse.FromString(body)

    async def push(self, message, payload=ANSWER):
        metadata = Metadata(reply_to_message_id=message)
        packed, pieces = pack(payload, metadata)
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[packed],
            message_object_trees=[pieces_of(message, pieces)],
        )
        return PushMessagesResponse.FromString(await self.call("push-messages", request)), pieces


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def site(mailbox, tmp_path):
    """The API, with the keys of two devices, and these."""
    api = FleetApi(mailbox, KeyDirectory(tmp_path), largest_reply=2**20)
    devices = Device(api), Device(api)
    for client, device in enumerate(devices):
        (tmp_path / f"client-{client}.pub").write_bytes(device.ssh)
    return devices


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_message_and_its_reply_take_one_call_each(site, mailbox):
    device, _ = site
    name = mailbox.send(device.node.node_id, WORK, 60.0)
    pulled = run(device.pull())
    [message] = pulled.messages_list
    assert message.metadata.message_id == name
    assert unpack(message).vectors["start"].data == bytes(400)
    run(device.push(name))
    # Once more, because the first answer was lost.
    run(device.push(name))
    [reply] = mailbox.collect([name])
    assert reply.payload.vectors["upload model"].data == bytes(400)
    assert reply.node == device.node.node_id


def test_a_device_cannot_reply_for_another(site, mailbox):
    mine, other = site
    name = mailbox.send(other.node.node_id, WORK, 60.0)
    assert not run(mine.pull()).messages_list
    with pytest.raises(RefusedCallError, match="replies for node") as refused:
        run(mine.push(name))
    assert refused.value.status == 409
    assert mailbox.collect([name]) == []
    run(other.push(name))
    assert [reply.node for reply in mailbox.collect([name])] == [other.node.node_id]


def test_a_device_cannot_call_as_another(site):
    mine, other = site
    for call, request in (
        ("pull-messages", PullMessagesRequest(node=other.node)),
        ("push-messages", PushMessagesRequest(node=other.node)),
        ("pull-object", PullObjectRequest(node=other.node)),
        ("push-object", PushObjectRequest(node=other.node)),
    ):
        with pytest.raises(RefusedCallError, match="not that node's") as refused:
            run(mine.call(call, request))
        assert refused.value.status == 401


def test_what_replies_to_nothing_is_refused(site, mailbox):
    with pytest.raises(RefusedCallError, match="replies to no message"):
        run(site[0].push("m"))
    with pytest.raises(RefusedCallError, match="one reply is expected"):
        run(site[0].call("push-messages", PushMessagesRequest(node=site[0].node)))
    assert mailbox.collect([]) == []


@pytest.mark.parametrize(
    ("behind", "what"), [(400, "400 s behind the server's"), (-60, "60 s ahead of the server's")]
)
def test_an_old_signature_is_refused(site, behind, what):
    site[0]._behind = timedelta(seconds=behind)
    with pytest.raises(RefusedCallError, match=what):
        run(site[0].pull())


def test_a_key_alone_is_not_enough(site, mailbox):
    mine, other = site
    body = PullMessagesRequest(node=other.node).SerializeToString()
    forged = other.headers() | {b"flwr-signature": mine.headers()[b"flwr-signature"]}
    for headers, reason in (
        (forged, "does not match the key"),
        ({b"flwr-public-key": b64encode(other.key)}, "not signed"),
        ({}, "unknown key"),
        (other.headers() | {b"flwr-signature": b"%"}, "not base64"),
        (other.headers() | {b"flwr-timestamp": b"noon"}, "without a valid time"),
    ):
        with pytest.raises(RefusedCallError, match=reason) as refused:
            run(mine.api.call(b"/v1/fleet/pull-messages", headers, body))
        assert refused.value.status == 401
    assert list(mailbox.nodes()) == []


def test_a_stranger_or_a_device_whose_key_was_deleted_is_refused(site, tmp_path, monkeypatch):
    with pytest.raises(RefusedCallError, match="unknown key"):
        run(Device(site[0].api).pull())
    monkeypatch.setattr("fedpbc.deployment.server.fleet_api.KEYS_SECONDS", 0.0)
    run(site[0].pull())
    (tmp_path / "client-0.pub").unlink()
    with pytest.raises(RefusedCallError, match="unknown key"):
        run(site[0].pull())


@pytest.mark.parametrize("path", ["get-run", "get-fab", "start-run", "../control/start-run", ""])
def test_no_app_can_be_named_or_fetched(site, path):
    with pytest.raises(RefusedCallError) as refused:
        run(site[0].call(path, GetFabRequest(node=site[0].node)))
    assert refused.value.status == 404


@pytest.mark.parametrize("path", [b"/v1/control/start-run", b"/v1/runtime/acquire-task", b"/docs"])
def test_flowers_other_interfaces_do_not_exist(site, path):
    with pytest.raises(RefusedCallError) as refused:
        run(site[0].api.call(path, site[0].headers(), b""))
    assert refused.value.status == 404


def test_registering_is_for_fleets_without_keys(site):
    with pytest.raises(RefusedCallError) as refused:
        run(site[0].call("register-node", RegisterNodeFleetRequest(public_key=b"k")))
    assert refused.value.status == 403
    mailbox = Mailbox()
    stranger = Device(FleetApi(mailbox, None, 2**20))
    run(stranger.call("register-node", RegisterNodeFleetRequest(public_key=stranger.key)))
    body = run(stranger.call("activate-node", ActivateNodeRequest(public_key=stranger.key)))
    assert ActivateNodeResponse.FromString(body).node_id == stranger.node.node_id
    assert list(mailbox.nodes()) == [stranger.node.node_id]
    leave = DeactivateNodeRequest(node_id=stranger.node.node_id)
    run(stranger.call("deactivate-node", leave))
    assert list(mailbox.nodes()) == []


def test_a_poll_waits_for_a_message(site, mailbox):
    device, other = site

    async def scene():
        loop = asyncio.get_running_loop()
        mailbox.on_send = lambda node: loop.call_soon_threadsafe(device.api.wake, node)
        began = time.monotonic()
        waiting = asyncio.create_task(device.pull(b"30"))
        await asyncio.sleep(0.05)
        mailbox.send(other.node.node_id, WORK, 60.0)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        name = mailbox.send(device.node.node_id, WORK, 60.0)
        [message] = (await waiting).messages_list
        assert message.metadata.message_id == name
        assert time.monotonic() - began < 25
        # Without the header it does not wait.
        assert not (await device.pull()).messages_list

    run(scene())


def test_a_second_poll_ends_the_first(site):
    """Its connection has died: a message must not go there."""

    async def scene():
        first = asyncio.create_task(site[0].pull(b"30"))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(site[0].pull(b"1"))
        assert not (await first).messages_list
        assert not second.done()
        assert not (await second).messages_list

    run(scene())


def test_a_large_reply_comes_in_pieces(site, mailbox, monkeypatch):
    monkeypatch.setattr(flower_messages, "LARGEST_INLINE", 10)
    monkeypatch.setattr(flower_messages, "PIECE_SIZE", 100)
    device = site[0]
    name = mailbox.send(device.node.node_id, WORK, 60.0)
    [tree] = run(device.pull()).message_object_trees
    assert len(tree.children) > 4
    # Pieces of zeros are alike: announced often, sent once.
    response, pieces = run(device.push(name))
    by_name = {piece_name(piece): piece for piece in pieces}
    assert set(response.objects_to_push) == set(by_name)
    assert len(by_name) < len(pieces)
    for each, piece in by_name.items():
        assert mailbox.collect([name]) == []
        for content, is_right in ((piece + b"x", False), (piece, True)):
            request = PushObjectRequest(
                node=device.node, object_id=each, object_content=content, session_id=name
            )
            if is_right:
                run(device.call("push-object", request))
            else:
                with pytest.raises(RefusedCallError, match="no piece of this reply"):
                    run(device.call("push-object", request))
    [reply] = mailbox.collect([name])
    assert reply.payload.vectors["upload model"].data == bytes(400)


def test_a_reply_that_is_too_large_is_refused(site, mailbox, monkeypatch):
    monkeypatch.setattr(flower_messages, "LARGEST_INLINE", 10)
    monkeypatch.setattr(flower_messages, "PIECE_SIZE", 100)
    device = site[0]
    device.api._largest_reply = 300
    name = mailbox.send(device.node.node_id, WORK, 60.0)
    with pytest.raises(RefusedCallError, match="pieces is too large") as refused:
        run(device.push(name))
    assert refused.value.status == 413
    # Nor if each piece could be one of a smaller reply.
    monkeypatch.setattr(flower_messages, "PIECE_SIZE", 280)
    _, pieces = run(device.push(name, WORK))
    first, second = (
        PushObjectRequest(
            node=device.node, object_id=piece_name(each), object_content=each, session_id=name
        )
        for each in pieces
    )
    run(device.call("push-object", first))
    with pytest.raises(RefusedCallError, match="a reply of more than 300 bytes"):
        run(device.call("push-object", second))
    assert mailbox.message_for(name, device.node.node_id).reply_pieces == {}


@pytest.mark.parametrize(
    "payload", [Payload({}), Payload({"kind": "answer"}, {"x": Vector("int8", b"1")})]
)
def test_whatever_a_reply_contains_the_loop_gets_it(site, mailbox, payload):
    name = mailbox.send(site[0].node.node_id, WORK, 60.0)
    run(site[0].push(name, payload))
    assert len(mailbox.collect([name])) == 1


def test_an_unreadable_reply_has_a_reason(site, mailbox):
    name = mailbox.send(site[0].node.node_id, WORK, 60.0)
    message = Message(metadata=Metadata(reply_to_message_id=name))
    push = PushMessagesRequest(node=site[0].node, messages_list=[message])
    run(site[0].call("push-messages", push))
    [reply] = mailbox.collect([name])
    assert reply.payload is None
    assert reply.error == "not a fedpbc message"


def test_a_malformed_call_is_refused(site):
    device = site[0]
    for body, wait in ((b"\xff\xff", b"0"), (b"", b"soon")):
        headers = device.headers() | {b"fedpbc-wait": wait}
        with pytest.raises(RefusedCallError) as refused:
            run(device.api.call(b"/v1/fleet/pull-messages", headers, body))
        assert refused.value.status == 400
