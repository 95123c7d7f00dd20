"""Which model each client holds: distinct models, and a number for each client.

Clients that were synchronised in the same round hold the same model. A list of a million clients'
models would be a million entries to go through in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["HeldModels"]


class HeldModels(Sequence[Tensor]):
    """A model for each client; those that no client holds any more are dropped.

    Models are told apart by their identity: tensors are never changed in place.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(1), torch.ones(1)
        >>> held = HeldModels(x, clients=3)
        >>> held[1] = y
        >>> held[0] is held[2] is x, held[1] is y, held.distinct
        (True, True, 2)
    """

    def __init__(self, model: Tensor, clients: int) -> None:
        self._models: dict[int, Tensor] = {0: model}
        self._holders: dict[int, int] = {0: clients}
        self._numbers: dict[int, int] = {id(model): 0}
        self._next = 1
        self._held = np.zeros(clients, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self._models[number] for number in self._held[client].tolist()]
        return self._models[int(self._held[client])]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self._models.__getitem__, self._held.tolist())

    def __setitem__(self, client: int, model: Tensor) -> None:
        number = self._number(model)
        former = int(self._held[client])
        self._held[client] = number
        self._holders[number] += 1
        self._release(former, 1)

    def put(self, clients: NDArray[np.int64], model: Tensor) -> None:
        """Let all these clients, each named once, hold a model."""
        if not len(clients):
            return
        number = self._number(model)
        former, counts = np.unique(self._held[clients], return_counts=True)
        self._held[clients] = number
        self._holders[number] += len(clients)
        for each, count in zip(former.tolist(), counts.tolist(), strict=True):
            self._release(each, count)

    def append(self, model: Tensor) -> None:
        """Add a client that holds a model."""
        number = self._number(model)
        self._held = np.append(self._held, np.int64(number))
        self._holders[number] += 1

    @property
    def distinct(self) -> int:
        """How many different models there are."""
        return len(self._models)

    def _number(self, model: Tensor) -> int:
        number = self._numbers.get(id(model))
        if number is None:
            # While it is held here, no other tensor can get its id.
            number = self._numbers[id(model)] = self._next
            self._models[number], self._holders[number] = model, 0
            self._next += 1
        return number

    def _release(self, number: int, count: int) -> None:
        self._holders[number] -= count
        if not self._holders[number]:
            del self._numbers[id(self._models.pop(number))], self._holders[number]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: the models, and the place of each client's among them."""
        numbers = np.array(sorted(self._models))
        return {
            "models": [self._models[number] for number in numbers.tolist()],
            "clients": np.searchsorted(numbers, self._held).astype(np.int32),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any] | Sequence[Tensor]) -> HeldModels:
        """Continue from :meth:`state`, or from a list of each client's model, as it was before."""
        if not isinstance(state, Mapping):
            held = cls(state[0], len(state))
            for client, model in enumerate(state):
                held[client] = model
            return held
        models = list(state["models"])
        held = cls(models[0], 0)
        held._held = np.asarray(state["clients"], dtype=np.int64)
        held._models = dict(enumerate(models))
        held._numbers = {id(model): number for number, model in enumerate(models)}
        held._holders = dict(enumerate(np.bincount(held._held, minlength=len(models)).tolist()))
        held._next = len(models)
        return held
