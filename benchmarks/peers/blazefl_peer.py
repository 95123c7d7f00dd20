"""BlazeFL: its FedAvg in each of its three execution modes.

One client after another, or several at a time: in threads, the mode that its authors recommend, or
in processes that share memory. The loop is that of its quickstart, without the evaluation.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode

from benchmarks.peers.blazefl_data import Networks, Pictures, data
from benchmarks.protocol import serve
from benchmarks.work import participation

ENDLESS = 10**9
SEED = 0
MODES = ("threads", "processes")


class Server(FedAvgBaseServerHandler):
    """Chooses the same clients as everywhere."""

    table: np.ndarray

    def sample_clients(self) -> list[int]:
        """The clients of this round."""
        return [int(client) for client in self.table[self.round % len(self.table)].nonzero()[0]]


def main() -> None:
    """Take the folder of the work, the mode and the number of workers from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    count, mode = options.parallel, options.mode if options.parallel > 1 else "one after another"
    if count > 1:
        # One core for each client that is trained at a time. Workers are forked, as on Linux by
        # default, which OpenMP's threads would not survive.
        torch.set_num_threads(1)
    work = data(options.folder).work
    application = {
        "model_selector": Networks(options.folder),
        "model_name": work.name,
        "dataset": Pictures(options.folder),
        "num_clients": work.clients,
        "device": "cpu",
        "batch_size": work.batch_size,
        "seed": SEED,
    }
    server = Server(**application, global_round=ENDLESS, sample_ratio=work.chosen / work.clients)
    server.table = participation(work)
    training = {**application, "epochs": 1, "lr": work.learning_rate}
    trainer: (
        FedAvgBaseClientTrainer | FedAvgThreadPoolClientTrainer | FedAvgProcessPoolClientTrainer
    )
    if count == 1:
        trainer = FedAvgBaseClientTrainer(**training)
    elif mode == "threads":
        trainer = FedAvgThreadPoolClientTrainer(**training, num_parallels=count)
    else:
        # The first optimizer of a process imports a compiler, which takes seconds. There are new
        # processes in every round: they inherit what was imported here.
        torch.optim.SGD(server.model.parameters())
        trainer = FedAvgProcessPoolClientTrainer(
            **training,
            num_parallels=count,
            ipc_mode=IPCMode.SHARED_MEMORY,
            share_dir=options.folder / "blazefl-shared",
            state_dir=options.folder / "blazefl-state",
        )

    def run(rounds: int) -> int:
        samples = 0
        for _ in range(rounds):
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                # Counted batch by batch where the client trains.
                samples += package.data_size
                server.load(package)
        return samples // work.batch_size

    about = {name: version(name) for name in ("blazefl", "torch")}
    about |= {"clients at a time": count, "mode": mode, "threads": torch.get_num_threads()}
    serve(run, about)


if __name__ == "__main__":
    main()
