"""A plain PyTorch loop, one client after another, as a researcher would write it.

Neither tuned nor slowed down: a model, an optimiser and a DataLoader for each client, PyTorch's own
number of threads, contiguous tensors, autograd.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.protocol import serve
from benchmarks.work import Prepared, network, participation

PADDING = 4


class Client:
    """A client's model, optimiser and data."""

    def __init__(self, data: Prepared, number: int, template: nn.Module) -> None:
        self.work = data.work
        self.model = copy.deepcopy(template)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.work.learning_rate)
        part = data.part(number)
        loader = DataLoader(
            TensorDataset(data.inputs[part], data.labels[part]),
            batch_size=self.work.batch_size,
            shuffle=True,
            drop_last=True,  # a short batch would be less work
        )
        self.batches = endless(loader)
        self.means = torch.tensor(data.means).view(-1, 1, 1)
        self.deviations = torch.tensor(data.deviations).view(-1, 1, 1)

    def train(self) -> int:
        """The local steps of one round."""
        self.model.train()
        for _ in range(self.work.local_steps):
            inputs, labels = next(self.batches)
            if self.work.augment:
                inputs = augmented((inputs - self.means) / self.deviations)
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(inputs), labels)
            loss.backward()
            self.optimizer.step()
        return self.work.local_steps


def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[list[Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


def augmented(pictures: Tensor) -> Tensor:
    """One random crop and one random flip for the whole batch."""
    height, width = pictures.shape[2:]
    padded = functional.pad(pictures, (PADDING,) * 4)
    top, left = random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING)
    pictures = padded[:, :, top : top + height, left : left + width]
    return pictures.flip(3) if random.random() < 0.5 else pictures


def average(models: list[nn.Module]) -> dict[str, Tensor]:
    """The mean of the models' parameters."""
    states = [model.state_dict() for model in models]
    return {name: torch.stack([s[name] for s in states]).mean(dim=0) for name in states[0]}


class Plain:
    """All clients, and the server's model."""

    def __init__(self, data: Prepared) -> None:
        self.work, self.participation, self.round = data.work, participation(data.work), 0
        self.server = network(data.work)
        self.clients = [Client(data, i, self.server) for i in range(data.work.clients)]

    def run(self, rounds: int) -> int:
        """So many rounds; returns the number of local steps."""
        steps = 0
        for _ in range(rounds):
            active = [
                int(i)
                for i in self.participation[self.round % len(self.participation)].nonzero()[0]
            ]
            steps += self.fedpbc(active) if self.work.algorithm == "fedpbc" else self.fedavg(active)
            self.round += 1
        return steps

    def fedpbc(self, active: list[int]) -> int:
        """Train all clients; average the uploaded models and send their clients the average."""
        steps = sum(client.train() for client in self.clients)
        mean = average([self.clients[i].model for i in active])
        for i in active:
            self.clients[i].model.load_state_dict(mean)
        return steps

    def fedavg(self, active: list[int]) -> int:
        """Participants start from the server's model; the results are averaged."""
        steps = 0
        for i in active:
            self.clients[i].model.load_state_dict(self.server.state_dict())
            steps += self.clients[i].train()
        self.server.load_state_dict(average([self.clients[i].model for i in active]))
        return steps


def main() -> None:
    """Take the folder of the work from the command line and serve."""
    data = Prepared.read(Path(sys.argv[1])).touch()
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    serve(Plain(data).run, about, warm_up=1 if data.work.algorithm == "fedpbc" else 2)


if __name__ == "__main__":
    main()
