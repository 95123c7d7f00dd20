"""The work that every contestant does: data, network, and participating clients per round.

Imports nothing of fedpbc at the top: the peers read this file in environments that lack it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = [
    "ALGORITHMS",
    "FOLDER",
    "PACKAGED",
    "WORKLOADS",
    "Prepared",
    "Work",
    "network",
    "participation",
    "prepare",
]

ALGORITHMS = ("fedpbc", "fedavg")
WORKLOADS = ("cifar10", "fashion", "resnet18")
PACKAGED = {"fashion": "mlp", "cifar10": "cnn_cifar10", "resnet18": "resnet18_gn"}
"""The package's own name for each workload's network."""
CLASSES = 10
SEED = 20240607
TABLE_ROUNDS = 1000
"""After so many rounds the table of who takes part begins again."""
FOLDER = "FEDPBC_BENCH_FOLDER"
"""The environment variable for code that a framework calls and that cannot be told otherwise."""
FILES = {"pictures": "pictures.npy", "inputs": "inputs.npy", "labels": "labels.npy"}


@dataclass(frozen=True)
class Work:
    """A number of rounds of this is what is timed.

    Attributes:
        name: of the workload: "cifar10", "fashion", "resnet18", or "dense" for fashion with another
            width.
        algorithm: "fedpbc": all clients train, a tenth upload; "fedavg": a tenth train.
        clients: m.
        samples: how many each client holds.
        hidden: the width of the dense network; 0: a convolutional one for CIFAR-10.
        local_steps: s.
        batch_size: samples a step.
        learning_rate: constant, so that nobody has to spend time on changing it.
        augment: one random crop and one random flip a batch, after normalising.
    """

    name: str
    algorithm: str
    clients: int = 100
    samples: int = 500
    hidden: int = 0
    local_steps: int = 5
    batch_size: int = 16
    learning_rate: float = 0.05
    augment: bool = False

    @classmethod
    def named(cls, name: str, algorithm: str, samples: int | None = None) -> Work:
        """One of the workloads; ``samples`` is for quick trials."""
        if name == "cifar10":
            # The peers have no augmentation of one crop a batch, so FedAvg goes without.
            return cls(name, algorithm, samples=samples or 500, augment=algorithm == "fedpbc")
        if name == "resnet18":
            return cls(name, algorithm, samples=samples or 100, learning_rate=0.01)
        return cls(name, algorithm, samples=samples or 100, hidden=64)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        return (28, 28, 1) if self.hidden else (32, 32, 3)

    @property
    def chosen(self) -> int:
        """How many uploads succeed in a round, on average."""
        return max(1, self.clients // 10)

    @property
    def trained(self) -> int:
        """How many clients train in a round."""
        return self.clients if self.algorithm == "fedpbc" else self.chosen

    @property
    def steps(self) -> int:
        """Local steps of all clients in a round."""
        return self.trained * self.local_steps

    @property
    def title(self) -> str:
        """One line for tables and plots."""
        network = f"dense, {self.hidden} hidden" if self.hidden else "the paper's CNN for CIFAR-10"
        if self.name == "resnet18":
            network = "ResNet-18 with GroupNorm, 32×32 pictures"
        part = "all train" if self.algorithm == "fedpbc" else f"{self.trained} train"
        return (
            f"{self.algorithm}, {self.name} ({network}): {self.clients} clients, {part}, "
            f"{self.local_steps} steps of {self.batch_size} per round"
        )


def network(work: Work) -> nn.Sequential:
    """The network as the paper writes it: convolution, ReLU, pooling; or the ResNet."""
    if work.name == "resnet18":
        # Of the package: only plain PyTorch and the package itself train it.
        from fedpbc.tasks.networks import build_model

        return build_model(PACKAGED[work.name], work.shape, CLASSES, seed=0)
    if work.hidden:
        height, width, channels = work.shape
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(height * width * channels, work.hidden),
            nn.ReLU(),
            nn.Linear(work.hidden, CLASSES),
        )
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 256),
        nn.ReLU(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def participation(work: Work) -> NDArray[np.bool_]:
    """Return which clients upload (fedpbc) or train (fedavg) in each round: [rounds, clients]."""
    rng = np.random.default_rng(SEED)
    if work.algorithm == "fedpbc":
        table = rng.random((TABLE_ROUNDS, work.clients)) < work.chosen / work.clients
        # A round without anyone would be less work than the others.
        table[~table.any(axis=1), 0] = True
        return table
    table = np.zeros((TABLE_ROUNDS, work.clients), dtype=np.bool_)
    for row in table:
        row[rng.choice(work.clients, work.chosen, replace=False)] = True
    return table


def prepare(work: Work, folder: Path) -> None:
    """Write the work and its data, for all contestants to map into memory."""
    pictures, labels = _pictures(work)
    flat = pictures.reshape(-1, work.shape[2]).astype(np.float32)
    means, deviations = flat.mean(axis=0), flat.std(axis=0)
    del flat
    inputs = pictures.astype(np.float32)
    if not work.augment:
        inputs = (inputs - means) / deviations
    inputs = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    np.save(folder / FILES["pictures"], pictures)
    np.save(folder / FILES["inputs"], inputs)
    np.save(folder / FILES["labels"], labels)
    statistics = {"means": means.tolist(), "deviations": deviations.tolist()}
    (folder / "work.json").write_text(json.dumps({"work": asdict(work), **statistics}))


def _pictures(work: Work) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures [N, H, W, C], client after client.

    For CIFAR-10 they are random pixels, so that nothing has to be downloaded: the time of a step
    does not depend on what is in a picture.
    """
    rng = np.random.default_rng(SEED)
    count = work.clients * work.samples
    if not work.hidden:
        pictures = rng.integers(0, 256, (count, *work.shape), dtype=np.uint8)
        return pictures, rng.integers(0, CLASSES, count)
    from fedpbc.data import load

    train = load("fashion").train
    order = np.resize(rng.permutation(len(train.labels)), count)
    return train.inputs[order], train.labels[order]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What :func:`prepare` wrote.

    Attributes:
        pictures: uint8 [N, H, W, C].
        inputs: float32 [N, C, H, W]: normalised, or from 0 to 255 where batches are augmented.
        labels: int64 [N].
        means: of the channels, in units of 0 to 255.
        deviations: likewise.
    """

    work: Work
    pictures: Tensor
    inputs: Tensor
    labels: Tensor
    means: list[float]
    deviations: list[float]

    @classmethod
    def read(cls, folder: Path) -> Prepared:
        """Map the files: all contestants share one copy in the system's cache."""
        stored = json.loads((folder / "work.json").read_text())
        tensors = {
            # Copy-on-write: PyTorch warns of arrays that cannot be written.
            name: torch.from_numpy(np.load(folder / file, mmap_mode="c"))
            for name, file in FILES.items()
        }
        return cls(
            work=Work(**stored["work"]),
            **tensors,
            means=stored["means"],
            deviations=stored["deviations"],
        )

    def part(self, client: int) -> slice:
        """Which samples a client holds."""
        return slice(client * self.work.samples, (client + 1) * self.work.samples)

    def touch(self) -> Prepared:
        """Have the prepared inputs in this process's page tables before anything is timed."""
        self.inputs.sum()
        return self
