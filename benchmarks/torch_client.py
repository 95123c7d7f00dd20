"""A client app in Flower's usual form, to compare with: it imports PyTorch and trains by itself.

Everything else is as in ours: the same messages, the same work, the same state on disk.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.protocol.messages import refusal
from fedpbc.deployment.protocol.records import from_records, to_records
from fedpbc.deployment.settings import task_of_client
from fedpbc.errors import FedpbcError
from fedpbc.experiments.user_app import load_user_app

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do the work of one message."""
    state = Path(str(context.node_config["trainer"])).parent
    payload = from_records(message.content)
    client = payload.integer("client")
    user_app = load_user_app(state.parent / "app.py")
    make_task = partial(task_of_client, client=client, app=user_app, device="cpu")
    try:
        reply = Trainer(client, state, make_task, lazy=True).handle(payload)
    except FedpbcError as error:
        reply = refusal(str(error))
    return Message(to_records(reply), reply_to=message)
