"""What docs/flower.md shows, in an app on a grid that is in this process."""

from __future__ import annotations

import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedpbc.experiments.advice import advise
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.flower import FedPBC
from fedpbc.flower.messages import CORRECTION
from tests import small_runs as small
from tests.commandline import ran
from tests.doc_blocks import ROOT, blocks, fragments
from tests.flower.fake_grid import app_of, cut, grid_of, record_of


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


@pytest.mark.slow
def test_the_commands_on_the_links_of_an_app(tmp_path, monkeypatch):
    """What the strategy has logged is a trace for `links`, `advise` and `compare`, as it stands."""
    monkeypatch.chdir(tmp_path)
    task, table = small.quadratic(), small.random_table(seed=5)
    strategy = FedPBC(fraction_evaluate=0.0, links="links.csv")
    grid = grid_of(app_of(task, cut(table)), task.clients)
    strategy.start(grid, record_of(task.init().numpy()), num_rounds=len(table))
    (block,) = [b for b in blocks(ROOT / "docs" / "flower.md") if "--trace links.csv" in b.text]
    lines = [shlex.split(line)[1:] for line in block.text.splitlines()]
    assert [words[0] for words in lines] == ["links", "advise", "compare"]
    # The budget of a busy machine is no matter of this test, nor is how long Fashion-MNIST takes.
    plan = Schedule(6, ("fedavg", "fedpbc"), 1, 2, 2, True, 9.0, False)
    monkeypatch.setattr(advise, "choose_schedule", lambda *_, **options: plan)
    monkeypatch.setattr(advise, "MOST_SEEDS", 2)
    small_task = {"links": (), "advise": ("--data", "digits", "--rounds", 6, "--jobs", 1)}
    small_task["compare"] = ("--data", "digits", "--rounds", 3, "--seeds", "0", "--jobs", 1)
    printed = {words[0]: ran(*words, *small_task[words[0]]).out for words in lines}
    assert f"{len(table)} rounds, {task.clients} devices" in printed["links"]
    assert "Run " in printed["advise"]
    for name in ("fedpbc", "fedau", "mifa"):
        assert name in printed["compare"]
