"""What BlazeFL asks an application for: a partitioned data set and a selector of models.

In a module of its own: its worker processes are sent these objects with every client, so they hold
nothing but the folder's name, and find their classes by import.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Generator, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from benchmarks.work import Prepared, network


@cache
def data(folder: Path) -> Prepared:
    """The samples, read once; workers inherit them."""
    return Prepared.read(folder).touch()


@dataclass(frozen=True)
class Pictures:
    """The samples of each client; nothing is evaluated, so there are none for testing."""

    folder: Path

    def get_dataset(self, type_: str, cid: int | None) -> Dataset:
        """A client's samples."""
        samples = data(self.folder)
        part = samples.part(cid)
        return TensorDataset(samples.inputs[part], samples.labels[part])

    def set_dataset(self, type_: str, cid: int | None, dataset: Dataset) -> None:
        """Training changes no samples, so there is nothing to keep."""

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None, generator: Generator | None
    ) -> DataLoader:
        """As many random samples as the local steps take: its FedAvg trains whole epochs."""
        dataset = self.get_dataset(type_, cid)
        count = data(self.folder).work.local_steps * batch_size
        sampler = RandomSampler(dataset, num_samples=count, generator=generator)
        return DataLoader(dataset, batch_size, sampler=sampler)


@dataclass(frozen=True)
class Networks:
    """There is one network."""

    folder: Path

    def select_model(self, model_name: str) -> nn.Module:
        """A new one; its caller overwrites the parameters."""
        return network(data(self.folder).work)
