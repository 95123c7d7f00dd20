"""pfl-research: its FederatedAveraging on its SimulatedBackend.

With one process as PyTorch comes, or with one for each core as its guide "Fast distributed
simulations" shows, which splits the clients of a round over the processes. Between blocks the
simulation waits in a callback.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.protocol import REPLIES, BlockTimer, QuitError
from benchmarks.work import Prepared, network, participation

ENDLESS = 10**9


class Network(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers, self.steps = layers, 0

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of a batch."""
        self.steps += 1
        return functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict:
        """Nothing is evaluated."""
        return {}


def in_turn(table: np.ndarray):
    """The clients of one round after another."""
    while True:
        for row in table:
            yield from map(int, row.nonzero()[0])


def main() -> None:
    """Take the folder of the work and the number of processes from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    if options.parallel == 1 or "PFL_WORKER_RANK" in os.environ:
        simulate(options.folder)
        return
    # As the guide has it: the same script once for each process, told by the environment.
    count = options.parallel
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(count))
    shared = {"PFL_WORKER_ADDRESSES": addresses, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.peers.pfl_peer", *sys.argv[1:]]
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "PFL_WORKER_RANK": str(rank)},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            # The first one answers for all.
            pass_fds=[int(os.environ[REPLIES])] if rank == 0 else [],
        )
        for rank in range(count)
    ]
    sys.exit(max(worker.wait() for worker in workers))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def simulate(folder: Path) -> None:
    """One process of the simulation."""
    # Importing joins the processes, so it must not happen in the one that starts them.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    processes = len(os.environ.get("PFL_WORKER_ADDRESSES", "one").split(","))
    leads = os.environ.get("PFL_WORKER_RANK", "0") == "0"

    class TimedFedAvg(TrainingProcessCallback):
        """Waits for the turns; the first process hears of them and tells the others."""

        def __init__(self) -> None:
            names = ("pfl", "torch")
            about = {name: version(name) for name in names}
            about |= {"processes": processes, "threads": torch.get_num_threads()}
            self.timer = BlockTimer(about)
            self.left = 2  # the warm-up

        def on_train_begin(self, *, model) -> Metrics:
            """The beginning of the first round."""
            self.before_round(model)
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            """The end of a round, and so the beginning of the next."""
            return self.before_round(model), Metrics()

        def before_round(self, model) -> bool:
            """Wait if a block is over; gives whether to stop."""
            if self.left == 0:
                # The loss is called once a step, in every process for its own clients.
                steps = torch.tensor(model.pytorch_model.steps)
                if processes > 1:
                    torch.distributed.all_reduce(steps)
                self.timer.steps = int(steps)
            began = 0
            if leads:
                try:
                    began = self.timer.before_round()
                except QuitError:
                    began = -1
            if self.left == 0:
                if processes > 1:
                    told = torch.tensor(began)
                    torch.distributed.broadcast(told, src=0)
                    began = int(told)
                if began < 0:
                    return True
                self.left, model.pytorch_model.steps = began, 0
            self.left -= 1
            return False

    data = Prepared.read(folder).touch()
    work, draw = data.work, np.random.default_rng(0)
    clients = in_turn(participation(work))

    def samples_of(client: int) -> PyTorchTensorDataset:
        # As many random samples as its local steps take: pfl goes through a user's samples in
        # order, so this is where they are shuffled.
        count = work.local_steps * work.batch_size
        index = draw.choice(work.samples, count, replace=work.samples < count)
        index = torch.from_numpy(index + data.part(client).start)
        return PyTorchTensorDataset((data.inputs[index], data.labels[index]))

    network_ = Network(network(work))
    training = FederatedDataset(samples_of, lambda: next(clients))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=work.chosen,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=training, val_data=training),
        model=PyTorchModel(
            model=network_,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network_.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.batch_size,
            local_num_epochs=None,
            local_num_steps=work.local_steps,
            local_learning_rate=work.learning_rate,
        ),
        callbacks=[TimedFedAvg()],
    )


if __name__ == "__main__":
    main()
