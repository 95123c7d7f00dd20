"""The client app: takes a message to the device's trainer, and its answer back.

Flower starts a process for every message, so this one imports no torch and knows nothing of
training. Which trainer it is says the node's configuration: ``trainer="/path/of/its/socket"``.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpbc.flower.local import ask
from fedpbc.flower.parcel import ParcelError, refusal
from fedpbc.flower.records import from_records, to_records

__all__ = ["app"]

app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Ask the trainer; while it is being started again, for as long as the message lives."""
    socket = context.node_config.get("trainer")
    left = message.metadata.created_at + message.metadata.ttl - time.time()
    try:
        parcel = from_records(message.content)
        if not isinstance(socket, str):
            reply = refusal("the node's configuration names no trainer: --node-config 'trainer=…'")
        else:
            reply = ask(Path(socket), parcel, patience=max(left, 1.0))
    except ParcelError as error:
        reply = refusal(str(error))
    return Message(to_records(reply), reply_to=message)


app.query()(answer)
app.train()(answer)
