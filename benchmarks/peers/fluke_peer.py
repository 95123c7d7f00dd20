"""fluke: its FedAVG with clients and server of its own, and its FastDataLoader.

One client after another with PyTorch's threads: fluke trains several at a time only on as many
GPUs. Between blocks the federation waits in an observer.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from torch import nn

from benchmarks.peers.counted_loss import CountedLoss
from benchmarks.protocol import BlockTimer, QuitError, refuse
from benchmarks.work import CLASSES, Prepared, network, participation

ENDLESS = 10**9


class Splitter:
    """Hands out the samples as they were prepared; none are for testing."""

    def __init__(self, data: Prepared) -> None:
        self.data = data

    def assign(self, n_clients: int, batch_size: int):
        """The loaders of the clients for training and testing, and that of the server."""
        work = self.data.work
        # Of a client's samples its loader takes a share. Half a sample more: it rounds down.
        share = min(1.0, (work.local_steps * batch_size + 0.5) / work.samples)
        loaders = []
        for client in range(n_clients):
            part = self.data.part(client)
            samples = (self.data.inputs[part], self.data.labels[part])
            loaders.append(
                FastDataLoader(
                    *samples,
                    num_labels=CLASSES,
                    batch_size=batch_size,
                    shuffle=True,
                    percentage=share,
                )
            )
        return (loaders, [None] * n_clients), None


class ChosenServer(Server):
    """Chooses the same clients as everywhere."""

    table: np.ndarray
    round = 0

    def get_eligible_clients(self, eligible_perc: float) -> list[Client]:
        """The clients of this round."""
        row = self.table[self.round % len(self.table)]
        self.round += 1
        return [self.clients[int(client)] for client in row.nonzero()[0]]


class FedAvg(CentralizedFL):
    """The base class is FedAVG; only the choice of clients is another."""

    def get_server_class(self) -> type[Server]:
        """Called when the federation is built."""
        return ChosenServer


class Turns(FederationObserver):
    """Waits for the turns."""

    def __init__(self, timer: BlockTimer) -> None:
        self.timer = timer

    def start_round(self, round: int, global_model: nn.Module) -> None:
        """The beginning of a round."""
        self.timer.steps = CountedLoss.calls
        if self.timer.before_round():
            CountedLoss.calls = 0


def main() -> None:
    """Take the folder of the work from the command line and serve."""
    data = Prepared.read(Path(sys.argv[1])).touch()
    work = data.work
    if work.samples < work.local_steps * work.batch_size:
        refuse(f"its loader needs {work.local_steps * work.batch_size} samples per client")
        return
    about = {name: version(name) for name in ("fluke-fl", "torch")}
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    federation = FedAvg(
        work.clients,
        Splitter(data),
        DDict(
            model=network(work),
            client=DDict(
                batch_size=work.batch_size,
                local_epochs=1,
                loss=CountedLoss,
                optimizer=DDict(name="SGD", lr=work.learning_rate),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
        ),
    )
    federation.server.table = participation(work)
    federation.set_callbacks(Turns(BlockTimer(about | {"threads": torch.get_num_threads()})))
    try:
        federation.run(ENDLESS, work.chosen / work.clients)
    except QuitError:
        return


if __name__ == "__main__":
    main()
