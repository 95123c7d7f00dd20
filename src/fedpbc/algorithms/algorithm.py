"""The interface of an algorithm: a server model, a rule for the updates that arrive, and a rule
for the clients.

An algorithm sees flat vectors and client numbers, nothing of training, data or links. The server
computes in double precision and rounds once, to the type of the model, so the order in which
clients are summed does not show in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, Self

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from fedpbc.aggregation import Aggregation, mean
from fedpbc.algorithms.client import ClientRule, OwnVectors, Vector, Vectors
from fedpbc.errors import InputError
from fedpbc.options import check_kind, check_type

__all__ = [
    "Algorithm",
    "Round",
    "ServerInit",
    "Update",
    "Updates",
    "Vector",
    "advance",
    "advanced",
    "mean",
]


@dataclass(frozen=True)
class ServerInit:
    """Initial state of the server.

    Attributes:
        x0: the initial model, a flat vector.
        clients: m, the number of clients.
        global_lr: η_g, the global learning rate.
        aggregation: how uploads are combined instead of by the mean.

    Example:
        >>> import torch
        >>> ServerInit(torch.zeros(3), clients=10).global_lr
        1.0
    """

    x0: Vector
    clients: int
    global_lr: float = 1.0
    aggregation: Aggregation = field(default_factory=Aggregation)

    def __post_init__(self) -> None:
        check_kind("aggregation", self.aggregation, Aggregation, "an Aggregation")
        check_type("clients", self.clients, Annotated[int, Ge(1)])
        check_type("global_lr", self.global_lr, Annotated[float, Gt(0)])
        if getattr(self.x0, "ndim", None) != 1:
            raise InputError("x0", type(self.x0).__name__, "a tensor, a flat vector")


@dataclass(frozen=True)
class Round:
    """What the server knows about round t.

    Attributes:
        number: t, from 0.
        active: A^t, the clients whose uplink is up, ascending.
        learning_rate: η_t.
        local_steps: s.
        probabilities: p_i^t, only for algorithms with ``needs_probabilities``.

    Example:
        >>> Round(0, np.array([2, 5]), learning_rate=0.1, local_steps=5).active.tolist()
        [2, 5]
    """

    number: int
    active: NDArray[np.int64]
    learning_rate: float
    local_steps: int
    probabilities: NDArray[np.float64] | None = None


class Update:
    """One client's upload, and the model that it started from.

    Clients share vectors, so every vector that is read here is a copy, which the reader may change
    in place.

    Attributes:
        client: i.
        start: the model before the local steps.
        end: the model after them; None for a rule whose clients do not upload it.
        vectors: what was uploaded besides, by name: ``update["control"]``.

    Example:
        >>> import torch
        >>> Update(4, start=torch.tensor([1.0]), end=torch.tensor([0.5])).delta.item()
        -0.5
    """

    def __init__(
        self, client: int, start: Vector, end: Vector | None, vectors: Vectors | None = None
    ) -> None:
        for name, vector in (("start", start), ("end", end)):
            if not hasattr(vector, "double") and (name == "start" or vector is not None):
                raise InputError(name, type(vector).__name__, "a tensor")
        self.client = client
        # Only for code that changes no vector in place: it needs no copies.
        self.shared_start, self.shared_end = start, end
        self.shared_vectors: Vectors = {} if vectors is None else vectors

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]

    @property
    def start(self) -> Vector:
        """The model before the local steps."""
        return self.shared_start.clone()

    @property
    def end(self) -> Vector | None:
        """The model after the local steps; None for a rule whose clients do not upload it."""
        return None if self.shared_end is None else self.shared_end.clone()

    @property
    def vectors(self) -> Vectors:
        """What was uploaded besides, by name."""
        return OwnVectors(self.shared_vectors)

    @property
    def model(self) -> Vector:
        """The model after the local steps."""
        return self.shared_model.clone()

    @property
    def shared_model(self) -> Vector:
        """The same, not to be changed in place."""
        if self.shared_end is None:
            raise InputError(f"client {self.client} uploads no model: its rule does not declare it")
        return self.shared_end

    @property
    def delta(self) -> Vector:
        """Δ_i, in double precision."""
        return self.shared_model.double() - self.shared_start.double()


class Updates(Protocol):
    """The updates of the selected clients, ascending by client; a list is one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Update]: ...


def advance(base: Vector, update: Update, scale: float) -> Vector:
    """Return base + scale·Δ_i, which is the client's model if scale is 1 and it began at ``base``.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0])
        >>> advance(x, Update(0, x, torch.tensor([3.0])), scale=0.5)
        tensor([2.], dtype=torch.float64)
    """
    check_kind("update", update, Update, "an Update")
    check_type("scale", scale, float)
    if not hasattr(base, "double") or base.shape != update.shared_start.shape:
        raise InputError("base", type(base).__name__, "a tensor like those of the update")
    moved = next(advanced(base, [update], scale))
    return moved.clone() if moved is update.shared_end else moved


def advanced(base: Vector, updates: Iterable[Update], scale: float) -> Iterator[Vector]:
    """Yield ``advance(base, update, scale)`` for each of the updates.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0])
        >>> [each.item() for each in advanced(x, [Update(0, x, torch.tensor([3.0]))], 0.5)]
        [2.0]
    """
    # Memory is slower than arithmetic: what most have in common is compared and converted once.
    start: Vector | None = None
    exact_start: Vector | None = None
    is_base = False
    for update in updates:
        if update.shared_start is not start:
            start, exact_start = update.shared_start, None
            is_base = start is base or start.equal(base)
        if scale == 1 and is_base:
            yield update.shared_model
            continue
        if exact_start is None:
            exact_start = update.shared_start.double()
        moved = update.shared_model.double() - exact_start
        moved *= scale
        moved += exact_start if start is base else base
        yield moved


class Algorithm:
    """Base class of federated-learning algorithms: set ``name`` and override ``aggregate``.

    Options are keyword-only parameters of ``__init__``. All attributes of the instance (tensors,
    arrays, numbers, tensors by client) are saved and restored with a run.

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
    """The publication that it comes from."""
    everyone_trains: ClassVar[bool] = False
    """Every client trains in every round, whether or not its uplink is up."""
    client_models: ClassVar[bool] = False
    """Clients start from their own model x_i, not from the server's."""
    one_pass: ClassVar[bool] = False
    """``aggregate`` iterates over the updates once: they need not all be in memory together."""
    needs_probabilities: ClassVar[bool] = False
    """The server must know the true p_i^t."""
    memory_aided: ClassVar[bool] = False
    """Aided by memory or known statistics: the paper's second group."""
    robust_means: ClassVar[bool] = False
    """Its means over clients are :meth:`mean_of`: a trimmed mean or a median can replace them."""
    departed: int = 0
    """How many clients have left."""
    later_options: ClassVar[tuple[str, ...]] = ()
    """Options that a later version added: at their defaults a run is the one of before."""
    tuned_options: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values that ``fedpbc tune`` tries for the algorithm's own options, besides the default."""
    _options: Mapping[str, Any]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Note the options, whatever the class keeps of them: :meth:`join` needs them."""
        algorithm = super().__new__(cls)
        algorithm._options = {name: v for name, v in options.items() if name != "init"}
        return algorithm

    def __init__(self, init: ServerInit) -> None:
        check_kind("init", init, ServerInit, "a ServerInit")
        # A copy: whoever made the initial model may still use it.
        self._x = init.x0.clone()
        self.clients = init.clients
        self.global_lr = init.global_lr
        self._aggregation = init.aggregation

    @property
    def aggregation(self) -> Aggregation:
        """How uploads are combined instead of by the mean, and how far an update may go."""
        return self._aggregation

    @property
    def members(self) -> int:
        """How many clients there are now: m, without those that have left."""
        return self.clients - self.departed

    def join(self, round: int) -> None:
        """Take one more client, of the next number, from this round on.

        Arrays with an entry for each client get what a new instance, with the same options and one
        client more, has for its last.
        """
        init = ServerInit(self.x, self.clients + 1, self.global_lr, self.aggregation)
        fresh = vars(type(self)(init, **self._options))
        for name, value in list(vars(self).items()):
            new = fresh.get(name)
            if not isinstance(value, np.ndarray) or not isinstance(new, np.ndarray):
                continue
            # Not an array that only happens to be as long as there are clients.
            if new.shape == (*value.shape[:-1], self.clients + 1) != value.shape:
                setattr(self, name, np.concatenate([value, new[..., -1:]], axis=-1))
        self.clients += 1

    def leave(self, client: int) -> None:
        """Forget a client that has left for good; its number is not given again."""
        self.departed += 1

    def mean_of(self, vectors: Iterable[Vector]) -> Vector:
        """The mean over clients, or what was chosen in its place; for ``robust_means``."""
        result: Vector = self._aggregation.mean_of(vectors)
        return result

    @property
    def x(self) -> Vector:
        """The server's model x^t; assigned values are rounded to the type of x^0."""
        if "_x" not in vars(self):
            raise InputError(f"{type(self).__name__}.__init__ should call super().__init__(init)")
        return self._x

    @x.setter
    def x(self, value: Vector) -> None:
        self._x = value.to(self.x.dtype)

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return ((cls.__doc__ or "").strip().splitlines() or [""])[0]

    def select(self, round: Round) -> NDArray[np.int64] | Sequence[int]:
        """The clients of A^t that take part, an array or a list; by default all of them."""
        return round.active

    def client_rule(self) -> ClientRule | None:
        """The client's side; None for plain local steps and an upload of the model."""
        return None

    def message(self, client: int) -> Vectors:
        """The vectors that the server sends along with the model; by default none.

        They are of the model's type. Return the same tensor for all clients that get the same.
        """
        return {}

    def report(self, round: Round, update: Update) -> Vector:
        """The model that a client with its own model reports, and keeps if no reply arrives."""
        return update.shared_model

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Set ``x`` to x^{t+1}; called in every round, without updates if no client took part.

        ``updates`` are those of the selected clients, ascending: a list, or with ``one_pass`` an
        object that has a length and can be iterated over once.
        """
        raise NotImplementedError(f"{type(self).__name__} has no aggregate()")

    def state(self) -> dict[str, Any]:
        """Everything that changes from round to round, for a checkpoint."""
        given = ("_aggregation", "_options")
        return {name: value for name, value in vars(self).items() if name not in given}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        vars(self).update(state)
