"""A user's model and data: a Python file with ``model()`` and ``data(client)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpbc.errors import InputError, one_line
from fedpbc.experiments.plugins import load_plugin
from fedpbc.randomness import integer_seed
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.user_data import Samples, as_tensors

__all__ = ["UserApp", "load_user_app"]


@dataclass(frozen=True)
class UserApp:
    """The functions of a user's file.

    Attributes:
        model: returns a new module; the server's is the initial model.
        data: returns a client's inputs and labels; called only on that client's device.
        loss: of a batch's outputs and labels; cross-entropy unless the file defines ``loss``.

    Example:
        >>> app = UserApp(
        ...     model=lambda: nn.Linear(3, 2),
        ...     data=lambda client: (torch.randn(20, 3), torch.arange(20) % 2),
        ... )
        >>> app.task(1, clients=4, seed=0, training=LocalTraining()).clients
        4
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Samples]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy

    def module(self, seed: int) -> nn.Module:
        """Make a module, initialized from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(integer_seed(seed, "initial model"))
            module = _call("model()", self.model)
        if not isinstance(module, nn.Module):
            name = type(module).__name__
            raise InputError(f"model() returns a {name}, but should return a torch.nn.Module")
        return module

    def samples(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A client's inputs and labels."""
        call = f"data({client})"
        samples = _call(call, self.data, client)
        if not isinstance(samples, tuple | list) or len(samples) != 2:
            kind = type(samples).__name__
            raise InputError(
                f"{call} returns a {kind}, but should return a pair: inputs and labels"
            )
        return as_tensors((samples[0], samples[1]), call)

    def task(
        self,
        client: int,
        *,
        clients: int,
        seed: int,
        training: LocalTraining,
        device: str = "cpu",
    ) -> Supervised:
        """One client's task; the other clients' data is not loaded."""
        samples = self.samples(client)
        # The other clients get a placeholder, so that this one keeps its number.
        everything, placeholder = np.arange(len(samples[0])), np.zeros(1, dtype=np.int64)
        parts = [everything if i == client else placeholder for i in range(clients)]
        return self._supervised(samples, parts, seed, training, device)

    def whole_task(self, *, clients: int, seed: int, training: LocalTraining) -> Supervised:
        """The task with all clients' data, to simulate the same fleet."""
        samples = [self.samples(client) for client in range(clients)]
        ends = np.cumsum([len(inputs) for inputs, _ in samples])
        parts = np.split(np.arange(ends[-1]), ends[:-1])
        inputs, labels = (torch.cat(each) for each in zip(*samples, strict=True))
        return self._supervised((inputs, labels), parts, seed, training, "cpu")

    def _supervised(
        self, samples: Any, parts: Any, seed: int, training: LocalTraining, device: str
    ) -> Supervised:
        return Supervised(
            self.module(seed),
            samples,
            samples,
            partition=parts,
            loss=self.loss,
            training=training,
            seed=seed,
            device=device,
        )


def load_user_app(path: Path) -> UserApp:
    """Import a user's file."""
    module = load_plugin(str(path), "app")
    for name, signature in (("model", "model()"), ("data", "data(client)")):
        if not callable(getattr(module, name, None)):
            raise InputError("app", str(path), f"a file with a function {signature}")
    loss = getattr(module, "loss", functional.cross_entropy)
    return UserApp(module.model, module.data, loss)


def _call(call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{call} fails: {one_line(error)}") from error
