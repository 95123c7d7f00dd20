"""The client of the Flower app, in a module of its own.

Flower sends the app to Ray's workers with every message. What stands in the main script would be
sent along by value; what is imported is found there by name.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.work import FOLDER, Prepared, network

app = ClientApp()


@cache
def data() -> Prepared:
    """The samples, read once in each worker."""
    return Prepared.read(Path(os.environ[FOLDER])).touch()


@cache
def loader(client: int) -> DataLoader:
    """A client's batches, kept between its rounds."""
    samples = data()
    part = samples.part(client)
    dataset = TensorDataset(samples.inputs[part], samples.labels[part])
    return DataLoader(dataset, samples.work.batch_size, shuffle=True, drop_last=True)


@app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of one round, as in Flower's tutorial for PyTorch."""
    work = data().work
    model = network(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    model.train()
    steps = 0
    for inputs, labels in loader(int(context.node_config["partition-id"])):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        steps += 1
        if steps == work.local_steps:
            break
    metrics = MetricRecord(
        {"num-examples": work.samples, "steps": steps, "threads": torch.get_num_threads()}
    )
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
