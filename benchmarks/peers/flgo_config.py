"""What FLGo makes a benchmark of: it copies this file and looks for these names in the copy."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.work import FOLDER, Prepared, network

_data = Prepared.read(Path(os.environ[FOLDER])).touch()

train_data = TensorDataset(_data.inputs, _data.labels)
test_data = TensorDataset(_data.inputs[:10], _data.labels[:10])

# Its general benchmarks do not shuffle by themselves.
DataLoader = partial(torch.utils.data.DataLoader, shuffle=True)


def get_model() -> nn.Module:
    """The network."""
    return network(_data.work)


def data_to_device(batch: list[Tensor], device: torch.device) -> list[Tensor]:
    """Where the computation is."""
    return [part.to(device) for part in batch]


def compute_loss(model: nn.Module, batch: list[Tensor], device: torch.device) -> dict:
    """Of a batch."""
    inputs, labels = data_to_device(batch, device)
    return {"loss": functional.cross_entropy(model(inputs), labels)}


def eval(model: nn.Module, loader: object, device: torch.device) -> dict:
    """Nothing is evaluated."""
    return {}
