"""The client app: takes a message to the device's trainer, and its answer back.

Flower starts a process for every message, so this one imports no torch and knows nothing of
training. Which trainer it is says the node's configuration: ``trainer="/path/of/its/socket"``.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpbc.deployment.device.trainer_socket import ask
from fedpbc.deployment.protocol.messages import MessageError, Payload, refusal
from fedpbc.deployment.protocol.records import from_records, to_records

__all__ = ["app"]

LEAST_PATIENCE = 3.0
"""Seconds: a trainer that is started again needs no less."""

app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Ask the trainer; while it is being started again, for as long as the answer can count."""
    socket = context.node_config.get("trainer")
    try:
        parcel = from_records(message.content)
        if not isinstance(socket, str):
            reply = refusal("the node's configuration names no trainer: --node-config 'trainer=…'")
        else:
            reply = ask(Path(socket), parcel, patience=patience_for(parcel, message))
    except MessageError as error:
        reply = refusal(str(error))
    return Message(to_records(reply), reply_to=message)


def patience_for(parcel: Payload, message: Message) -> float:
    """Seconds from now until the round ends, as the server said: clocks may differ."""
    if parcel.kind == "work":
        left = parcel.number("round_seconds") - parcel.number("age")
        return max(left, LEAST_PATIENCE)
    about = message.metadata
    return max(float(about.created_at + about.ttl) - time.time(), 1.0)


app.query()(answer)
app.train()(answer)
