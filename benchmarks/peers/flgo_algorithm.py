"""FLGo's FedAvg, waiting for its turns: a module with a Server and a Client, as FLGo wants it."""

from __future__ import annotations

import numpy as np
import torch
from flgo.algorithm import fedavg

from benchmarks import protocol
from benchmarks.work import Work, participation

_timer: protocol.BlockTimer
_table: np.ndarray


def begin(work: Work, about: dict) -> None:
    """Before the server is made."""
    global _timer, _table
    _timer, _table = protocol.BlockTimer(about), participation(work)


class Server(fedavg.Server):
    """Chooses the clients that take part, and counts the steps they made."""

    def iterate(self):
        """One round, as in the class that this is of."""
        _timer.about["threads"] = torch.get_num_threads()
        _timer.before_round()
        self.selected_clients = self.sample()
        received = self.communicate(self.selected_clients)
        _timer.steps += sum(received["steps"])
        self.model = self.aggregate(received["model"])
        return len(received["model"]) > 0

    def sample(self) -> list[int]:
        """The same clients as everywhere."""
        row = _table[(self.current_round - 1) % len(_table)]
        return [int(client) for client in row.nonzero()[0]]


class Client(fedavg.Client):
    """Says how many steps it made."""

    def pack(self, model, *args, **kwargs):
        """The answer to the server."""
        return {**super().pack(model, *args, **kwargs), "steps": self.num_steps}
