"""A fleet's own model and data: a Python file with ``model()`` and ``data(client)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpbc.errors import InputError, Verbatim, one_line
from fedpbc.experiments.plugins import load_plugin
from fedpbc.randomness import integer_seed
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.user_data import Samples, as_tensors

__all__ = ["UserApp", "load_user_app"]


@dataclass(frozen=True)
class UserApp:
    """What a user's file says.

    Attributes:
        model: gives a new module; the server's is the first model of all.
        data: gives a client's inputs and labels; called only on that client's device.
        loss: of a batch's outputs and labels; cross-entropy unless the file has a ``loss``.

    Example:
        >>> own = UserApp(
        ...     model=lambda: nn.Linear(3, 2),
        ...     data=lambda client: (torch.randn(20, 3), torch.arange(20) % 2),
        ... )
        >>> own.task(1, clients=4, seed=0, training=LocalTraining()).clients
        4
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Samples]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy

    def module(self, seed: int) -> nn.Module:
        """A module, initialised from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(integer_seed(seed, "initial model"))
            module = _call("model()", self.model)
        if not isinstance(module, nn.Module):
            raise InputError("model()", Verbatim(f"a {type(module).__name__}"), "a torch.nn.Module")
        return module

    def samples(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a client holds."""
        name = f"data({client})"
        found = _call(name, self.data, client)
        if not isinstance(found, tuple | list) or len(found) != 2:
            given = Verbatim(f"a {type(found).__name__}")
            raise InputError(name, given, "a pair: inputs and labels")
        return as_tensors((found[0], found[1]), name)

    def task(
        self,
        client: int,
        *,
        clients: int,
        seed: int,
        training: LocalTraining,
        device: str = "cpu",
    ) -> Supervised:
        """One client's task: nothing of the others' data is needed, or looked at."""
        samples = self.samples(client)
        # The others hold no more than a place, so that this client has its own number.
        whole, place = np.arange(len(samples[0])), np.zeros(1, dtype=np.int64)
        parts = [whole if i == client else place for i in range(clients)]
        return self._supervised(samples, parts, seed, training, device)

    def whole_task(self, *, clients: int, seed: int, training: LocalTraining) -> Supervised:
        """All clients' task in one place, to simulate the same fleet."""
        held = [self.samples(client) for client in range(clients)]
        ends = np.cumsum([len(inputs) for inputs, _ in held])
        parts = np.split(np.arange(ends[-1]), ends[:-1])
        inputs, labels = (torch.cat(each) for each in zip(*held, strict=True))
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
    """Read a user's file."""
    found = load_plugin(str(path), "app")
    for name in ("model", "data"):
        if not callable(getattr(found, name, None)):
            right = f"a file with a function {name}({'client' if name == 'data' else ''})"
            raise InputError("app", str(path), right)
    loss = getattr(found, "loss", functional.cross_entropy)
    return UserApp(found.model, found.data, loss)


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            name, Verbatim("failing"), f"without errors ({one_line(error)})"
        ) from error
