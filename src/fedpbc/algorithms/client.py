"""The client's side of an algorithm: what a client does besides its plain local steps.

A rule runs where the client is: in this process, in a worker, on a cluster, on a device. It sees
the model that the client starts from, what the server sent along and what the client kept. It says
what is added to every gradient, or takes the steps itself, and returns what is uploaded and what is
kept. The new state counts once the server has counted the upload that belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fedpbc.errors import InputError

if TYPE_CHECKING:
    # Only for types: listing the algorithms must not import torch.
    import torch

__all__ = [
    "ClientResult",
    "ClientRule",
    "ClientWork",
    "Gradient",
    "OwnVectors",
    "Vector",
    "Vectors",
]

Vector: TypeAlias = "torch.Tensor"
"""A model, or anything of its size, as a flat vector."""
Vectors: TypeAlias = "Mapping[str, torch.Tensor]"
"""Vectors by name: what is sent, kept or uploaded, in the model's type."""
Gradient: TypeAlias = "Callable[[torch.Tensor, int], torch.Tensor]"
"""The gradient at a model on the k-th batch of a client's work."""


class OwnVectors(Mapping[str, "torch.Tensor"]):
    """Vectors by name, each of which is read as a copy: a reader may change it in place."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def __getitem__(self, name: str) -> Vector:
        return self._vectors[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)


class ClientWork:
    """What a client knows when it trains.

    Clients share vectors, and one piece of work may be done twice. So every vector that is read
    here is a copy, which the reader may change in place.

    Attributes:
        client: i, its number.
        start: the model that it starts from.
        received: the vectors that the server sent along, by name.
        state: the vectors that the client kept from its last counted upload, by name.
        first_round: t, the first round of the work.
        rates: η_t of each round of the work: one round, or for an algorithm whose clients train
            while they are offline all rounds since the last contact.
        local_steps: s, the steps in a round.
        loss: returns a model's mean loss over the client's samples.
        step_sum_of: returns the step sum of rounds with these rates; without it, that of SGD.

    Example:
        >>> import torch
        >>> work = ClientWork(3, torch.zeros(2), {}, {}, 0, rates=(0.1, 0.05), local_steps=5)
        >>> work.steps, work.rate(7)
        (10, 0.05)
    """

    def __init__(
        self,
        client: int,
        start: Vector,
        received: Vectors,
        state: Vectors,
        first_round: int,
        rates: tuple[float, ...],
        local_steps: int,
        loss: Callable[[Vector], float] = lambda model: float("nan"),
        step_sum_of: Callable[[tuple[float, ...]], float] | None = None,
    ) -> None:
        self._start, self._received, self._state = start, received, state
        self.client, self.first_round, self.rates = client, first_round, rates
        self.local_steps, self.loss, self._step_sum_of = local_steps, loss, step_sum_of

    @property
    def start(self) -> Vector:
        """The model that the client starts from."""
        return self._start.clone()

    @property
    def received(self) -> Vectors:
        """The vectors that the server sent along, by name."""
        return OwnVectors(self._received)

    @property
    def state(self) -> Vectors:
        """The vectors that the client kept from its last counted upload, by name."""
        return OwnVectors(self._state)

    @property
    def steps(self) -> int:
        """The number of local steps in all rounds of the work."""
        return self.local_steps * len(self.rates)

    def rate(self, k: int) -> float:
        """The step size of the k-th step."""
        return self.rates[k // self.local_steps]

    @property
    def step_sum(self) -> float:
        """By what a gradient that is the same in all steps is multiplied in the model's change.

        s·η_t for the work of one round of plain SGD; more with momentum. With an optimizer that has
        no such number, such as Adam, an InputError.
        """
        if self._step_sum_of is None:
            return self.local_steps * sum(self.rates)
        return self._step_sum_of(self.rates)


@dataclass(frozen=True, eq=False)
class ClientResult:
    """What a client uploads, and what it keeps if the server counts the upload.

    Attributes:
        upload: the vectors of :attr:`ClientRule.uploads`; the model is added to them, except by a
            rule with steps of its own.
        state: the vectors of :attr:`ClientRule.keeps`.
        kept_model: the model after plain local steps, where it is not uploaded; set by the engine.
            A client that misses the server's answer trains on from it.
    """

    upload: Vectors = field(default_factory=dict)
    state: Vectors = field(default_factory=dict)
    kept_model: Vector | None = None


class ClientRule:
    """Base class of the client's side: declare the vectors, and override what differs.

    A rule must be a pure function of its work and its own options: work may be done again, in
    another process, and must come to the same bits. It must not change tensors in place. Results
    are rounded to the type of the model.

    Example:
        >>> class KeepsItsDrift(ClientRule):
        ...     '''Pulls against the way that the client moved last time.'''
        ...     keeps = ("drift",)
        ...     def correction(self, work):
        ...         return 0.1 * work.state["drift"]
        ...     def finish(self, work, end):
        ...         return ClientResult(state={"drift": end - work.start})
    """

    uploads: ClassVar[tuple[str, ...]] = ("model",)
    """The names of the vectors of an upload; ``model`` is the client's model after its steps."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """The names of the vectors that a client keeps from contact to contact."""

    def initial_state(self, x0: Vector) -> Vectors:
        """What a client holds before its first counted upload; by default zeros."""
        zeros = x0 * 0
        return dict.fromkeys(self.keeps, zeros)

    def correction(self, work: ClientWork) -> Vector | None:
        """The vector added to every gradient of the work; by default none."""
        return None

    def local_steps(self, work: ClientWork, gradient: Gradient) -> ClientResult:
        """Take the steps k = 0 … ``work.steps`` − 1; override it for steps other than SGD's.

        ``gradient(model, k)`` is the gradient on the k-th batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no steps of its own")

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """What is uploaded besides the model, and kept, given the model after the steps."""
        return ClientResult()

    @property
    def has_own_steps(self) -> bool:
        """Whether the rule takes the local steps itself."""
        return type(self).local_steps is not ClientRule.local_steps

    def check(self, result: ClientResult) -> None:
        """Raise InputError unless the result has exactly the declared vectors."""
        for kind, names, vectors in (
            ("uploads", self.uploads, result.upload),
            ("keeps", self.keeps, result.state),
        ):
            if set(vectors) != set(names):
                returned = ", ".join(sorted(vectors)) or "nothing"
                expected = ", ".join(sorted(names)) or "nothing"
                raise InputError(f"what {type(self).__name__} {kind}", returned, expected)
