"""Federated-learning algorithms, one file each: the server's rule and the client's rule.

To add an algorithm, write its file and list it below: the command line, comparisons, resumed runs
and the property tests then include it. Outside the package, use :func:`register_algorithm`.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Update, advance, mean
from fedpbc.algorithms.amplified_fedavg import AmplifiedFedAvg
from fedpbc.algorithms.amplified_scaffold import AmplifiedScaffold
from fedpbc.algorithms.area import Area
from fedpbc.algorithms.ca_fed import CAFed
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork
from fedpbc.algorithms.f3ast import F3AST
from fedpbc.algorithms.fedau import FedAU
from fedpbc.algorithms.fedavg import FedAvg
from fedpbc.algorithms.fedavg_all import FedAvgAll
from fedpbc.algorithms.fedavg_debiased import FedAvgDebiased
from fedpbc.algorithms.fedavg_known import FedAvgKnown
from fedpbc.algorithms.fedawe import FedAWE
from fedpbc.algorithms.fedpbc import FedPBC
from fedpbc.algorithms.fedstale import FedStale
from fedpbc.algorithms.fedvarp import FedVARP
from fedpbc.algorithms.focus import Focus
from fedpbc.algorithms.mifa import MIFA
from fedpbc.algorithms.mimic import MimiC
from fedpbc.algorithms.robustness import check_aggregation
from fedpbc.algorithms.scaffold import Scaffold
from fedpbc.errors import InputError
from fedpbc.options import nearest

__all__ = [
    "ALGORITHMS",
    "F3AST",
    "MIFA",
    "PAPER_ALGORITHMS",
    "Aggregation",
    "Algorithm",
    "AmplifiedFedAvg",
    "AmplifiedScaffold",
    "Area",
    "CAFed",
    "ClientResult",
    "ClientRule",
    "ClientWork",
    "FedAU",
    "FedAWE",
    "FedAvg",
    "FedAvgAll",
    "FedAvgDebiased",
    "FedAvgKnown",
    "FedPBC",
    "FedStale",
    "FedVARP",
    "Focus",
    "MimiC",
    "Round",
    "Scaffold",
    "ServerInit",
    "Update",
    "advance",
    "check_aggregation",
    "find_algorithm",
    "mean",
    "register_algorithm",
]

AlgorithmClass = TypeVar("AlgorithmClass", bound=type[Algorithm])

_BUILT_IN = (
    FedPBC,
    FedAvg,
    FedAvgAll,
    FedAU,
    F3AST,
    FedAvgKnown,
    MIFA,
    FedAWE,
    FedVARP,
    Scaffold,
    Focus,
    FedStale,
    MimiC,
    Area,
    CAFed,
    FedAvgDebiased,
    AmplifiedFedAvg,
    AmplifiedScaffold,
)

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _BUILT_IN}
"""Every registered algorithm by name."""

PAPER_ALGORITHMS = ("fedpbc", "fedavg", "fedavg_all", "fedau", "f3ast", "fedavg_known", "mifa")
"""The seven that the paper compares; the last two are aided by memory or known statistics."""


def register_algorithm(algorithm: AlgorithmClass) -> AlgorithmClass:
    """Register an algorithm under its name; usable as a decorator.

    Example:
        >>> @register_algorithm
        ... class Frozen(Algorithm):
        ...     '''Never moves.'''
        ...     name = "frozen"
        ...     def aggregate(self, round, updates): ...
        >>> find_algorithm("frozen").summary()
        'Never moves.'
        >>> del ALGORITHMS["frozen"]
    """
    if not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm):
        raise InputError("algorithm", algorithm, "a class that derives from Algorithm")
    option, name = f"{algorithm.__name__}.name", getattr(algorithm, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(option, name, "a word such as 'fedmedian'")
    _check_signature(algorithm)
    # A module that is imported again registers another class of the same origin.
    origins = {(a.__module__, a.__qualname__) for a in (algorithm, ALGORITHMS.get(name, algorithm))}
    if len(origins) > 1:
        raise InputError(option, name, "a name that is not taken yet")
    if algorithm.aggregate is Algorithm.aggregate:
        raise InputError(f"{algorithm.__name__} has no aggregate(self, round, updates): define it")
    try:
        inspect.signature(algorithm.aggregate).bind(algorithm, None, [])
    except (TypeError, ValueError):
        method = f"{algorithm.__name__}.aggregate"
        raise InputError(f"{method} should be a function aggregate(self, round, updates)") from None
    ALGORITHMS[name] = algorithm
    return algorithm


def _check_signature(algorithm: type[Algorithm]) -> None:
    """Raise InputError unless ``algorithm(init)`` can be called: options are keyword-only."""
    _, *parameters = inspect.signature(algorithm.__init__).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_variable = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    name = f"{algorithm.__name__}.__init__{inspect.signature(algorithm.__init__)}"
    if options := [p.name for p in positional[1:]]:
        many = "s" if len(options) > 1 else ""
        raise InputError(
            f"{name} has the positional option{many} {', '.join(options)}, but options are "
            "keyword-only: write __init__(self, init, *, option=default, ...)"
        )
    if not (positional or is_variable):
        raise InputError(f"{name} should be __init__(self, init, *, option=default, ...)")


def find_algorithm(name: str) -> type[Algorithm]:
    """Return the algorithm registered under ``name``."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise InputError("algorithm", name, nearest(str(name), ALGORITHMS))
    return ALGORITHMS[name]
