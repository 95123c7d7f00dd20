"""What an algorithm is: a server's model, and a rule for what got through.

An algorithm sees flat vectors and client numbers, nothing of training, data or links. The server's
arithmetic is in double precision and is rounded once, to the model's own type, so that the
order in which clients are added up cannot be seen in the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError

if TYPE_CHECKING:
    # Only for types: listing the algorithms must not wait for torch.
    import torch

    Vector = torch.Tensor

__all__ = ["Algorithm", "Round", "ServerInit", "Update", "Updates", "advance", "mean"]


@dataclass(frozen=True)
class ServerInit:
    """What an algorithm starts from.

    Attributes:
        x0: the first model, one flat vector.
        clients: m, how many clients there are.
        global_lr: η_g, the global learning rate.

    Example:
        >>> import torch
        >>> ServerInit(torch.zeros(3), clients=10).global_lr
        1.0
    """

    x0: Vector
    clients: int
    global_lr: float = 1.0

    def __post_init__(self) -> None:
        # Written so that a NaN is wrong too.
        if not 0 < self.global_lr < math.inf:
            raise InputError("global_lr", self.global_lr, "above 0 and finite")


@dataclass(frozen=True)
class Round:
    """What the server knows of round t.

    Attributes:
        number: t, from 0.
        active: A^t, the clients whose uplink is up, ascending.
        learning_rate: η_t.
        local_steps: s.
        probabilities: p_i^t, only for algorithms that ask for them.

    Example:
        >>> Round(0, np.array([2, 5]), learning_rate=0.1, local_steps=5).active.tolist()
        [2, 5]
    """

    number: int
    active: NDArray[np.int64]
    learning_rate: float
    local_steps: int
    probabilities: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Update:
    """What one client brings: the model it started from and the model it has after its local steps.

    Example:
        >>> import torch
        >>> Update(4, start=torch.tensor([1.0]), end=torch.tensor([0.5])).delta.item()
        -0.5
    """

    client: int
    start: Vector
    end: Vector

    @property
    def delta(self) -> Vector:
        """Δ_i, in double precision."""
        return self.end.double() - self.start.double()


class Updates(Protocol):
    """What the selected clients bring, in the order of their numbers; a list is one, too."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[Update]:
        """One after another."""


def mean(vectors: Iterable[Vector]) -> Vector:
    """The mean, added up in double precision in the order given, in the type of the first.

    Example:
        >>> import torch
        >>> mean([torch.tensor([1.0]), torch.tensor([2.0])])
        tensor([1.5000])
    """
    # One at a time: of many clients' models no more than one need exist.
    items = iter(vectors)
    first = next(items)
    total, count = first.double().clone(), 1
    for vector in items:
        total += vector
        count += 1
    return (total / count).to(first.dtype)


def advance(base: Vector, update: Update, scale: float) -> Vector:
    """base + scale·Δ_i, which is exactly the client's model when it started from ``base``.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0])
        >>> advance(x, Update(0, x, torch.tensor([3.0])), scale=0.5)
        tensor([2.], dtype=torch.float64)
    """
    if scale == 1 and (update.start is base or update.start.equal(base)):
        return update.end
    return base.double() + scale * update.delta


class Algorithm:
    """A federated-learning algorithm: subclass it, give it a name, and say how to aggregate.

    Options are keyword-only parameters of ``__init__``. Whatever the instance keeps in its
    attributes (tensors, arrays, numbers, tensors by client) is saved and restored with a run.

    Attributes:
        x: the server's model x^t.

    Example:
        >>> class FedHalf(Algorithm):
        ...     '''FedAvg that only goes half the way.'''
        ...     name = "fedhalf"
        ...     def aggregate(self, round, updates):
        ...         if updates:
        ...             self.x = mean(advance(self.x, u, 0.5) for u in updates)
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """Where it comes from."""
    everyone_trains: ClassVar[bool] = False
    """Every client trains in every round, whether or not its uplink is up."""
    client_models: ClassVar[bool] = False
    """Clients start from a model of their own, x_i, not from the server's."""
    one_pass: ClassVar[bool] = False
    """``aggregate`` goes through the updates once: they need not all be in memory together."""
    needs_probabilities: ClassVar[bool] = False
    """The server must be told the true p_i^t."""
    memory_aided: ClassVar[bool] = False
    """Aided by memory or known statistics: the paper's second group."""
    vectors_per_upload: ClassVar[int] = 1
    """How many vectors of the model's size a client sends."""
    models_on_client: ClassVar[int] = 0
    """How many a client must keep from round to round."""

    def __init__(self, fleet: ServerInit) -> None:
        self._x = fleet.x0
        self.clients = fleet.clients
        self.global_lr = fleet.global_lr

    @property
    def x(self) -> Vector:
        """The server's model; whatever it is set to is rounded to the type of the first model."""
        return self._x

    @x.setter
    def x(self, value: Vector) -> None:
        self._x = value.to(self._x.dtype)

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """How many vectors of the model's size the server keeps from round to round."""
        return 1

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return ((cls.__doc__ or "").strip().splitlines() or [""])[0]

    def select(self, round: Round) -> NDArray[np.int64]:
        """The clients of A^t that take part, ascending; by default all of them."""
        return round.active

    def correction(self, client: int) -> Vector | None:
        """What the client adds to every gradient of its local steps; by default nothing."""
        return None

    def report(self, round: Round, update: Update) -> Vector:
        """The model that a client with a model of its own reports, and keeps if no answer comes."""
        return update.end

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Set ``x`` to x^{t+1}; called in every round, with no updates where no client took part.

        ``updates`` are those of the selected clients, ascending: a list, or with ``one_pass``
        something that has a length and can be gone through once.
        """
        raise NotImplementedError(f"{type(self).__name__} has no aggregate()")

    def state(self) -> dict[str, Any]:
        """Everything that changes from round to round, for a checkpoint."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        vars(self).update(state)
