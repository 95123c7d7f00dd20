"""The client app: passes a message to the device's trainer, and returns its reply.

Flower starts a process for every message, so this one imports no torch and does not train itself.
The node's configuration names the trainer: ``trainer="/path/of/its/socket"``.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpbc.deployment.device.trainer_socket import request
from fedpbc.deployment.protocol.messages import MessageError, Payload, refusal
from fedpbc.deployment.protocol.records import from_records, to_records

__all__ = ["app"]

SHORTEST_TIMEOUT = 3.0
"""Seconds: enough for a trainer to restart."""

app = ClientApp()


def handle(message: Message, context: Context) -> Message:
    """Ask the trainer; if it is restarting, retry for as long as its reply can count."""
    socket = context.node_config.get("trainer")
    try:
        payload = from_records(message.content)
        if not isinstance(socket, str):
            reply = refusal("the node's configuration names no trainer: --node-config 'trainer=…'")
        else:
            reply = request(Path(socket), payload, timeout=timeout_of(payload, message))
    except MessageError as error:
        reply = refusal(str(error))
    return Message(to_records(reply), reply_to=message)


def timeout_of(payload: Payload, message: Message) -> float:
    """Seconds until the round ends, by the server's clock: the device's may differ."""
    if payload.kind == "work":
        left = payload.number("round_seconds") - payload.number("age")
        return max(left, SHORTEST_TIMEOUT)
    metadata = message.metadata
    return max(float(metadata.created_at + metadata.ttl) - time.time(), 1.0)


app.query()(handle)
app.train()(handle)
