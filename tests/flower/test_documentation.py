"""What docs/flower.md shows, in an app on a grid that is in this process."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedpbc.flower.messages import CORRECTION
from tests.doc_blocks import ROOT, fragments
from tests.flower.fake_grid import grid_of


def test_an_app_with_two_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Fewer rounds than the page has: messages are copied.
    server, client, correction, views = (
        replace(block, text=block.text.replace("num_rounds=100", "num_rounds=10"))
        for block in fragments(ROOT / "docs" / "flower.md")
    )
    app = client.run({"ClientApp": ClientApp})["app"]
    calls = []

    @app.train()
    def train(message, context):
        calls.append(message.content["config"]["server-round"])
        end = ArrayRecord({"w": Array(0.5 * message.content["arrays"]["w"].numpy() + 1)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": end, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    names = {"torch": torch, "arrays": ArrayRecord({"w": Array(np.zeros(2, np.float32))})}
    names["grid"] = grid_of(app, 2)
    server.run(names)
    assert calls == [round for round in range(1, 11) for _ in range(2)]
    assert np.allclose(names["result"].arrays["w"].numpy(), 2, atol=0.01)
    views.run(names)
    assert torch.load("averaged.pt", weights_only=True)["w"].shape == (2,)

    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    record = ArrayRecord({"weight": Array(np.full((1, 2), 3, np.float32))})
    names = {
        "torch": torch,
        "msg": SimpleNamespace(content=RecordDict({CORRECTION: record})),
        "model": model,
        "loss": model(torch.zeros(1, 2)).sum(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0),
    }
    correction.run(names)
    assert model.weight.equal(before - 3)
