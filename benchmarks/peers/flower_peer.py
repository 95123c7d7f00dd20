"""Flower's simulation: its FedAvg strategy, a ClientApp in PyTorch, Ray underneath.

One core for each client, so that as many train at a time as there are cores. Between blocks the
strategy waits in ``configure_train``. Which clients take part is Flower's own random choice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import app
from benchmarks.protocol import BlockTimer, QuitError
from benchmarks.work import FOLDER, Prepared, Work, network

ENDLESS = 10**9


class TimedFedAvg(FedAvg):
    """FedAvg that waits for its blocks and counts local steps."""

    def __init__(self, timer: BlockTimer, work: Work) -> None:
        super().__init__(
            fraction_train=work.chosen / work.clients,
            fraction_evaluate=0.0,
            min_available_nodes=work.clients,
        )
        self.timer = timer

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The beginning of a round."""
        self.timer.before_round()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        """The end of a round."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
            self.timer.steps += int(reply.content["metrics"]["steps"])
            self.timer.about["threads"] = int(reply.content["metrics"]["threads"])
        return super().aggregate_train(server_round, replies)


def main() -> None:
    """Take the folder of the work from the command line and serve."""
    folder = Path(sys.argv[1])
    os.environ[FOLDER] = str(folder)
    work = Prepared.read(folder).work
    cores = len(os.sched_getaffinity(0))
    names = ("flwr", "ray", "torch")
    timer = BlockTimer({name: version(name) for name in names} | {"clients at a time": cores})
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = TimedFedAvg(timer, work)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(network(work).state_dict()),
            num_rounds=ENDLESS,
        )

    torch.set_num_threads(cores)
    try:
        run_simulation(
            server_app=server,
            client_app=app,
            num_supernodes=work.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": cores, "include_dashboard": False},
            },
        )
    except QuitError:
        return


if __name__ == "__main__":
    main()
