"""The interface of a link scheme: a generator function that yields one row of links per round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar, overload

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.limits import MAX_CLIENTS, MAX_ROUNDS, array_of, numbers_of
from fedpbc.options import Option, check_fields, nearest, options_of
from fedpbc.randomness import generator, uniform
from fedpbc.registration import check_is_new, signature_of, summary_of

__all__ = [
    "SCHEMES",
    "LinkScheme",
    "Probabilities",
    "Row",
    "Rows",
    "Setting",
    "find_scheme",
    "link_scheme",
]

Row: TypeAlias = NDArray[np.bool_]
"""Whether each client's link is up in one round."""

Probabilities: TypeAlias = NDArray[np.float64]
"""One probability per client."""

Rows: TypeAlias = Iterator[Row | tuple[Row, Probabilities]]
"""One row per round, with or without the probabilities p_i^t."""


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that a link scheme may depend on.

    ``stream`` is "uplink" or "downlink": the two draw separately. ``option`` is the name of the
    configuration's section, for error messages.

    ``class_shares`` [clients, classes] and ``samples``, one number per client, say what the clients
    hold. They are None where the task has no such data, and for schemes that are not declared with
    ``@link_scheme(reads_data=True)``.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=10, base_probabilities=np.array([0.1, 0.9]))
        >>> setting.p.tolist()
        [0.1, 0.9]
    """

    seed: Annotated[int, Ge(0)]
    clients: Annotated[int, Ge(1), Le(MAX_CLIENTS)]
    rounds: Annotated[int, Ge(1), Le(MAX_ROUNDS)]
    base_probabilities: Probabilities | None = None
    stream: str = "uplink"
    option: str = "links"
    class_shares: NDArray[np.float64] | None = None
    samples: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, dimensions in (("class_shares", 2), ("samples", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._client_data(name, dimensions))
        if self.base_probabilities is None:
            return
        given = numbers_of(f"{self.option}.p", self.base_probabilities)
        if given.dtype.kind not in "biuf":
            raise InputError(f"{self.option}.p is of type {given.dtype}, but should be numbers")
        p = np.asarray(given, dtype=np.float64).view()
        if p.shape != (self.clients,):
            raise InputError(
                f"{self.option}.p has shape {p.shape}, but should be "
                f"one number for each of the {self.clients} clients"
            )
        outside = ~((p >= 0) & (p <= 1))
        if outside.any():
            client = int(outside.argmax())
            expected = f"from 0 to 1 for each client, also client {client}"
            raise InputError(f"{self.option}.p", float(p[client]), expected)
        # Schemes yield this very array.
        p.flags.writeable = False
        object.__setattr__(self, "base_probabilities", p)

    def _client_data(self, name: str, dimensions: int) -> NDArray[np.float64]:
        """What the clients hold, as a read-only array with one row for each of them."""
        array = np.asarray(array_of(name, getattr(self, name)), dtype=np.float64).view()
        if array.ndim != dimensions or len(array) != self.clients or not array.size:
            row = "one number" if dimensions == 1 else "one row of shares"
            raise InputError(
                f"{name} has shape {array.shape}, but should have {row} "
                f"for each of the {self.clients} clients"
            )
        if array.min() < 0:
            raise InputError(name, float(array.min()), "at least 0 for each client")
        array.flags.writeable = False
        return array

    @property
    def p(self) -> Probabilities:
        """The base probability of each client."""
        if self.base_probabilities is None:
            raise InputError(
                f"{self.option}.p is missing: set it, since this task has no classes "
                "to derive probabilities from"
            )
        return self.base_probabilities

    def uniform(self, t: int, purpose: str = "") -> NDArray[np.float64]:
        """One number in [0, 1) per client for round ``t``, whatever the number of clients.

        A scheme that needs several per client and round tells them apart by their ``purpose``.
        """
        stream = f"{self.stream}/{purpose}" if purpose else self.stream
        return uniform(self.seed, stream, t, self.clients)

    def generator(self, purpose: str, first: int = 0, second: int = 0) -> np.random.Generator:
        """For draws that are not one per client and round, such as a cycle's offset."""
        return generator(self.seed, f"{self.stream}/{purpose}", first, second)


@dataclass(frozen=True)
class LinkScheme:
    """A registered scheme: its name, function, summary and options.

    ``independent`` means that links are up independently of each other and of other rounds, with
    the probabilities that the rows come with. The formulas of the theory then hold exactly.
    ``reads_data`` says whether the scheme reads the setting's class shares or samples, or with
    which options it does.
    """

    name: str
    rows: Callable[..., Rows]
    summary: str
    options: dict[str, Option]
    independent: bool = False
    reads_data: bool | Callable[[Mapping[str, Any]], bool] = False

    def needs_data(self, options: Mapping[str, Any]) -> bool:
        """Whether the scheme with these options reads what the clients hold."""
        return self.reads_data(options) if callable(self.reads_data) else self.reads_data


SCHEMES: dict[str, LinkScheme] = {}
"""Every registered scheme by name."""

_Function = TypeVar("_Function", bound=Callable[..., Rows])


@overload
def link_scheme(function: _Function) -> _Function: ...


@overload
def link_scheme(
    *, independent: bool = ..., reads_data: bool | Callable[[Mapping[str, Any]], bool] = ...
) -> Callable[[_Function], _Function]: ...


def link_scheme(
    function: _Function | None = None,
    *,
    independent: bool = False,
    reads_data: bool | Callable[[Mapping[str, Any]], bool] = False,
) -> _Function | Callable[[_Function], _Function]:
    """Register a link scheme under the function's name; returns the function unchanged.

    The function takes a :class:`Setting`, and its options as keyword-only parameters. It yields one
    row per round: a bool for each client, alone or in a tuple with the probabilities that
    ``fedavg_known`` divides by. Each row must be a pure function of the setting and the options:
    draw from ``setting.uniform(t)`` or ``setting.generator(...)``.

    ``@link_scheme(independent=True)`` promises that every link in every round is up independently,
    with the probability that its row comes with. ``@link_scheme(reads_data=True)`` asks for the
    setting's ``class_shares`` and ``samples``; a function of the options says with which ones.

    Example:
        >>> @link_scheme
        ... def every_other(setting, *, first: int = 0):
        ...     '''Up in every other round.'''
        ...     for t in range(setting.rounds):
        ...         yield np.full(setting.clients, t % 2 == first)
        >>> SCHEMES.pop("every_other").summary
        'Up in every other round.'
    """
    if function is None:
        return partial(_register, independent=independent, reads_data=reads_data)
    return _register(function, independent, reads_data)


def _register(
    function: _Function,
    independent: bool,
    reads_data: bool | Callable[[Mapping[str, Any]], bool],
) -> _Function:
    if not callable(function) or not hasattr(function, "__name__"):
        raise InputError("link scheme", function, "a function")
    name = function.__name__
    registered = SCHEMES.get(name)
    check_is_new("link scheme", name, function, registered.rows if registered else None)
    signature = signature_of("link scheme", function, "a function")
    kinds = [parameter.kind.name for parameter in signature.parameters.values()]
    options = [
        parameter.name
        for parameter in list(signature.parameters.values())[1:]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if options:
        many = "s" if len(options) > 1 else ""
        raise InputError(
            f"the link scheme {name}{signature} has the positional option{many} "
            f"{', '.join(options)}, but options are keyword-only: write "
            f"{name}(setting, *, option=default, ...)"
        )
    if not kinds or kinds[0] == "KEYWORD_ONLY" or set(kinds[1:]) - {"KEYWORD_ONLY"}:
        raise InputError(
            f"the link scheme {name}{signature} should be {name}(setting, *, option=default, ...)"
        )
    SCHEMES[name] = LinkScheme(
        name, function, summary_of(function), options_of(function), independent, reads_data
    )
    return function


def find_scheme(name: str, option: str = "links") -> LinkScheme:
    """Return the scheme registered under ``name``; ``option`` names the choice in an error."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise InputError(option, name, nearest(str(name), SCHEMES))
    return SCHEMES[name]
