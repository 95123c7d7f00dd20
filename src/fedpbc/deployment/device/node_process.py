"""A device's node: fetches the server's messages, has the trainer reply, and returns the replies.

It speaks Flower's Fleet API with Flower's client, and is the only process on a device that reads
the node's key. It opens no port and runs no app: whatever a server sends, a device only trains
what its own trainer was started with. Imports no torch.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto

from fedpbc.deployment.device.fleet_client import connect
from fedpbc.deployment.device.trainer_socket import request
from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.protocol.flower_messages import (
    SERVER,
    joined,
    pack,
    piece_name,
    pieces_of,
    unpack,
)
from fedpbc.deployment.protocol.messages import MessageError, Payload, refusal
from fedpbc.errors import FedpbcError, one_line

__all__ = ["Node", "main"]

LOG = logging.getLogger("fedpbc.deployment")
T = TypeVar("T")
HEARTBEAT_SECONDS = 20.0
SHORTEST_TIMEOUT = 3.0
"""Seconds: enough for a trainer to restart."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 3.0
"""Seconds between two attempts to reach the server: rounds pass meanwhile."""
REJECTED_DELAY = 10.0


class UnreachableError(Exception):
    """The server cannot be reached, or refuses; it may later."""


class RejectedKeyError(UnreachableError):
    """The server does not accept the node's key, or its clock."""


class RefusedError(UnreachableError):
    """The server refuses this call, and would again."""


@dataclass
class Node:
    """Connects a server with a trainer.

    Attributes:
        connect: returns Flower's client of the Fleet API, and the node's public key.
        trainer: the trainer's socket.
        trainer_user: as whom the trainer runs, if not as the node's user.
        registers: whether the server does not know the key: without TLS.
    """

    connect: Callable[[], tuple[Any, bytes]]
    trainer: Path
    trainer_user: int | None = None
    registers: bool = False
    number: int | None = None
    client: Any = None
    _key: bytes = b""
    _problem: str = ""
    _given_up: str = ""

    def run(self) -> None:
        """Handle messages forever; if the server cannot be reached, try again."""
        delay = FIRST_DELAY
        while True:
            try:
                self.step()
                delay = FIRST_DELAY
            except UnreachableError as error:
                self._log_problem(str(error))
                if isinstance(error, RejectedKeyError):
                    # The operator may replace the key, or admit the device: both take time.
                    self.disconnect()
                    delay = REJECTED_DELAY
                # Devices that lost the same server should not all return at once.
                time.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(2 * delay, LONGEST_DELAY)

    def disconnect(self) -> None:
        """Close the connection; the next step reads the key again."""
        if self.client is not None:
            self.client.close()
        self.client = self.number = None

    def step(self) -> None:
        """Connect if needed, and handle the next message; waits for one for a while."""
        if self.number is None:
            self.activate()
        node = NodeProto(node_id=self.number or 0)
        pulled = self._call(self.client.PullMessages, PullMessagesRequest(node=node))
        self._log_problem("")
        if pulled.messages_list:
            self._handle(node, pulled.messages_list[0], pulled.message_object_trees)

    def activate(self) -> None:
        """Connect, and introduce the node to the server."""
        if self.client is None:
            try:
                self.client, self._key = self.connect()
            except FedpbcError as error:
                raise RejectedKeyError(str(error)) from None
        if self.registers:
            self._call(self.client.RegisterNode, RegisterNodeFleetRequest(public_key=self._key))
        call = ActivateNodeRequest(public_key=self._key, heartbeat_interval=30.0)
        self.number = int(self._call(self.client.ActivateNode, call).node_id)
        LOG.info("connected to the server as node %d", self.number)

    def leave(self) -> None:
        """Tell the server that the node ends; not if it cannot be reached."""
        if self.number is not None:
            try:
                self._call(self.client.DeactivateNode, DeactivateNodeRequest(node_id=self.number))
            except UnreachableError as error:
                LOG.debug("the server was not told: %s", error)

    def _handle(self, node: Any, message: Any, trees: Any) -> None:
        began, name = time.monotonic(), message.metadata.message_id
        if name == self._given_up:
            # The server did not take the reply, and would not take it now.
            return
        try:
            pieces = [
                self._fetch_piece(node, child.object_id)
                for tree in trees
                for child in tree.children
            ]
            payload = joined(pieces) if pieces else unpack(message)
            timeout = seconds_to_reply(payload, message.metadata.ttl)
            reply = self._ask_trainer(node, payload, timeout)
        except MessageError as error:
            reply, timeout = refusal(str(error)), SHORTEST_TIMEOUT
        self._push(node, name, reply, began + timeout + LONGEST_DELAY)

    def _fetch_piece(self, node: Any, name: str) -> bytes:
        pulled = self._call(self.client.PullObject, PullObjectRequest(node=node, object_id=name))
        content: bytes = pulled.object_content
        if not pulled.object_available or piece_name(content) != name:
            raise MessageError("a piece of the message is missing or damaged")
        return content

    def _ask_trainer(self, node: Any, payload: Payload, timeout: float) -> Payload:
        """Let the trainer reply; meanwhile the server hears that the node is there."""
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(
                request, self.trainer, payload, timeout=timeout, user=self.trainer_user
            )
            while True:
                try:
                    return waiting.result(timeout=HEARTBEAT_SECONDS)
                except NotDoneError:
                    heartbeat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30.0)
                    try:
                        self._call(self.client.SendNodeHeartbeat, heartbeat)
                    except UnreachableError as error:
                        self._log_problem(str(error))

    def _push(self, node: Any, message: str, reply: Payload, deadline: float) -> None:
        """Send a reply, again and again until the deadline; then the server asks anew."""
        metadata = Metadata(
            message_id=f"{message}-reply",
            src_node_id=node.node_id,
            dst_node_id=SERVER,
            reply_to_message_id=message,
            message_type="train",
            ttl=60.0,
            created_at=time.time(),
        )
        packed, pieces = pack(reply, metadata)
        tree = pieces_of(message, pieces) if pieces else ObjectTree()
        by_name = {piece_name(piece): piece for piece in pieces}
        push = PushMessagesRequest(node=node, messages_list=[packed], message_object_trees=[tree])
        delay = FIRST_DELAY
        while True:
            try:
                response = self._call(self.client.PushMessages, push)
                for name in response.objects_to_push:
                    piece = PushObjectRequest(
                        node=node,
                        object_id=name,
                        object_content=by_name[name],
                        session_id=response.session_id,
                    )
                    self._call(self.client.PushObject, piece)
                return
            except RefusedError as error:
                LOG.warning("the server does not take a reply: %s", error)
                self._given_up = message
                return
            except UnreachableError as error:
                self._log_problem(str(error))
                if time.monotonic() + delay > deadline:
                    return
            time.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _call(self, method: Callable[[Any], T], message: Any) -> T:
        """Call the server; every way in which that fails is an UnreachableError."""
        try:
            return method(message)
        except httpx.HTTPStatusError as error:
            status, text = error.response.status_code, one_line_of(error.response.text)
            if status == 401:
                raise RejectedKeyError(f"{text} (status {status})") from None
            if 400 <= status < 500 and status != 429:
                raise RefusedError(f"{text} (status {status})") from None
            raise UnreachableError(f"{text} (status {status})") from None
        except (httpx.HTTPError, ValueError, OSError) as error:
            raise UnreachableError(one_line(error)) from None

    def _log_problem(self, problem: str) -> None:
        """Log why the server cannot be reached, once, and when it can be again."""
        if problem and problem != self._problem:
            LOG.warning("the server cannot be reached: %s; trying again", problem)
        elif self._problem and not problem:
            LOG.info("the server is reached again")
        self._problem = problem


def seconds_to_reply(payload: Payload, ttl: float) -> float:
    """Seconds until the round ends, by the server's clock: the device's may differ."""
    if payload.kind == "work":
        left = payload.number("round_seconds") - payload.number("age")
        return max(left, SHORTEST_TIMEOUT)
    return max(ttl, 1.0)


def one_line_of(text: str) -> str:
    """A server's reason on one line, not too long."""
    return " ".join(text.split())[:200] or "no reason given"


def main() -> None:
    """Run as a process, which the device's launcher starts."""
    parser = argparse.ArgumentParser(prog="python -m fedpbc.deployment.device.node_process")
    parser.add_argument("--server", required=True)
    parser.add_argument("--trainer", type=Path, required=True)
    parser.add_argument("--trainer-user", type=int)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--ca", type=Path)
    options = parser.parse_args()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler])
    LOG.setLevel(logging.INFO)
    reconnect = partial(connect, options.server, options.key, options.ca)
    node = Node(reconnect, options.trainer, options.trainer_user, options.key is None)

    def stop(number: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        node.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        node.leave()
        sys.stdout.flush()
        # A thread may still wait for the trainer.
        os._exit(0)


if __name__ == "__main__":
    main()
