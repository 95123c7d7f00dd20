"""The example app, and the same training as a task for the simulator of this package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from fedpbc.algorithms import ALGORITHMS, ServerInit
from fedpbc.engines import SerialEngine
from fedpbc.links import from_table
from fedpbc.simulation.loop import Simulation
from fedpbc.tasks import Evaluation, LocalTraining
from fedpbc.tasks.parameter_layout import Layout

FOLDER = Path(__file__).parents[2] / "examples" / "flower-quickstart"
SETTINGS = {"local-epochs": 1, "learning-rate": 0.05, "batch-size": 16, "fraction-evaluate": 0.5}


def import_example(monkeypatch):
    """The modules of the example: task, client_app, server_app and links."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in [n for n in sys.modules if n.partition(".")[0] == "pytorchexample"]:
        monkeypatch.delitem(sys.modules, name)
    for module in ("task", "links", "client_app", "server_app"):
        import_module(f"pytorchexample.{module}")
    return sys.modules["pytorchexample"]


class QuickstartTask:
    """What the example's ``train`` does, called by the simulator."""

    seed, class_shares = 0, None
    training = LocalTraining(local_steps=1)

    def __init__(self, task, clients: int) -> None:
        self._task, self.clients = task, clients
        torch.manual_seed(0)
        self._first = task.Net().state_dict()
        self.layout = Layout(tuple(self._first), tuple(p.shape for p in self._first.values()))

    def init(self):
        return torch.cat([part.reshape(-1) for part in self._first.values()])

    def named(self, vector):
        parts = vector.split([part.numel() for part in self._first.values()])
        pairs = zip(self._first.items(), parts, strict=True)
        return {name: part.view(like.shape).clone() for (name, like), part in pairs}

    def local_steps(self, client, start, round, first_batch, correction):
        net = self._task.Net()
        net.load_state_dict(self.named(start))
        loader, _ = self._task.load_data(client, self.clients, SETTINGS["batch-size"])
        torch.manual_seed(1000 * (round + 1) + client)
        self._task.train(net, loader, 1, SETTINGS["learning-rate"], torch.device("cpu"))
        return torch.cat([part.reshape(-1) for part in net.state_dict().values()])

    def evaluate(self, model):
        return Evaluation(test_loss=0.0)


def simulated(task: QuickstartTask, name: str, table: np.ndarray) -> dict[str, torch.Tensor]:
    """The views of the simulator after the last round."""
    algorithm = ALGORITHMS[name](ServerInit(task.init(), task.clients))
    simulation = Simulation(task, algorithm, SerialEngine(task), from_table(table))
    list(simulation.run())
    return {view: m for view, m in simulation.view_models().items() if view != "mean"}


def largest_difference(task: QuickstartTask, views, expected) -> float:
    """Between state dicts by view, and the simulator's vectors."""
    assert views.keys() == expected.keys()
    differences = []
    for view, named in views.items():
        for name, part in task.named(expected[view]).items():
            differences.append(float((named[name] - part).abs().max()))
    return max(differences)


def down_table(links, clients: int, rounds: int, outage: float) -> np.ndarray:
    """Whose link is up in which round."""
    return np.array(
        [
            [not links.is_down(i, clients, t + 1, outage) for i in range(clients)]
            for t in range(rounds)
        ]
    )
