"""Flower's grid in this process: nodes with contexts of their own, and messages that are copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpbc.flower import catch_up_mod, correction_of

NAMES = ("first", "second")
"""The model of the test app is in two arrays, so that names and shapes matter."""


def record_of(vector) -> ArrayRecord:
    parts = np.split(np.asarray(vector), [1])
    return ArrayRecord({n: Array(p) for n, p in zip(NAMES, parts, strict=True)})


def vector_of(record: ArrayRecord) -> np.ndarray:
    return np.concatenate([record[name].numpy().reshape(-1) for name in NAMES])


class FakeNode:
    """A SuperNode: an app and a context, which is lost when it restarts."""

    def __init__(self, app: ClientApp, node_id: int, node_config: dict[str, object]) -> None:
        self.app, self.node_config = app, node_config
        self.context = Context(1, node_id, node_config, RecordDict(), {})

    def handle(self, message: Message) -> Message:
        context = deepcopy(self.context)
        try:
            reply = self.app(message, context)
        except Exception as error:
            return Message(Error(0, f"{type(error)}: {error}"), reply_to=message)
        self.context = context
        return deepcopy(reply)


class FakeGrid(Grid):
    """Delivers messages at once, ``deliveries`` times; ``after`` may change or drop a reply."""

    def __init__(self, nodes: dict[int, FakeNode]) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self.deliveries = 1
        self.after: Callable[[int, Message], Message | None] = lambda node, reply: reply

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.sent.append(message)
            node = message.metadata.dst_node_id
            for _ in range(self.deliveries):
                reply = self.nodes[node].handle(deepcopy(message))
            reply = self.after(node, reply)
            if reply is not None:
                replies.append(reply)
        return replies

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *args, **more):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError


def cut(table: np.ndarray) -> Callable[..., Message]:
    """A mod that cuts links: what comes in a round in which the client's link is down is lost."""

    def mod(message: Message, context: Context, call_next) -> Message:
        if message.metadata.message_type == "train":
            round = message.content["config"]["server-round"] - 1
            if not table[round, context.node_config["partition-id"]]:
                raise ConnectionError("the link is down")
        return call_next(message, context)

    return mod


def app_of(task, *mods, batches: str = "round") -> ClientApp:
    """An app that trains a task of this package; nothing in it is made for a certain algorithm.

    ``batches``: numbered by the round, or by how often the client has taken part.
    """
    import torch

    app = ClientApp(mods=[*mods, catch_up_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, config = context.node_config["partition-id"], message.content["config"]
        round = config["server-round"] - 1
        start = torch.from_numpy(vector_of(message.content["arrays"]))
        count = round if batches == "round" else message.content["fedpbc"]["participations"]
        correction = None
        if arrays := correction_of(message):
            correction = torch.from_numpy(np.concatenate([arrays[n].reshape(-1) for n in NAMES]))
        end = task.local_steps(client, start, round, count * task.training.local_steps, correction)
        metrics = {"num-examples": client + 1, "round": round + 1.0}
        metrics["start-loss"] = task.client_loss(client, start)
        records = {"arrays": record_of(end.numpy()), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(records), reply_to=message)

    return app


def grid_of(
    app: ClientApp, clients: int, *, ids: Sequence[int] = (), partitions: bool = True
) -> FakeGrid:
    numbers = ids or range(100, 100 + clients)
    nodes = {}
    for i, node in enumerate(numbers):
        config = {"partition-id": i, "num-partitions": clients} if partitions else {}
        nodes[node] = FakeNode(app, node, config)
    return FakeGrid(nodes)
