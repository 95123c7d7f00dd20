"""What the server does with what got through: one small file an algorithm.

To add one, write its file and add it to the registration below; it then appears in the command
line, comparisons, resumed runs and the property tests by itself. From outside the package,
:func:`register_algorithm` does the same.
"""

from __future__ import annotations

from typing import TypeVar

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Update, advance, mean
from fedpbc.algorithms.f3ast import F3AST
from fedpbc.algorithms.fedau import FedAU
from fedpbc.algorithms.fedavg import FedAvg
from fedpbc.algorithms.fedavg_all import FedAvgAll
from fedpbc.algorithms.fedavg_known import FedAvgKnown
from fedpbc.algorithms.fedawe import FedAWE
from fedpbc.algorithms.fedpbc import FedPBC
from fedpbc.algorithms.fedvarp import FedVARP
from fedpbc.algorithms.mifa import MIFA
from fedpbc.algorithms.scaffold import Scaffold
from fedpbc.errors import InputError
from fedpbc.options import nearest

__all__ = [
    "ALGORITHMS",
    "F3AST",
    "MIFA",
    "PAPER_ALGORITHMS",
    "Algorithm",
    "FedAU",
    "FedAWE",
    "FedAvg",
    "FedAvgAll",
    "FedAvgKnown",
    "FedPBC",
    "FedVARP",
    "Round",
    "Scaffold",
    "ServerInit",
    "Update",
    "advance",
    "find_algorithm",
    "mean",
    "register_algorithm",
]

A = TypeVar("A", bound=type[Algorithm])

ALGORITHMS: dict[str, type[Algorithm]] = {}

PAPER_ALGORITHMS = ("fedpbc", "fedavg", "fedavg_all", "fedau", "f3ast", "fedavg_known", "mifa")
"""The seven that the paper compares; the last two are aided by memory or known statistics."""


def register_algorithm(algorithm: A) -> A:
    """Make an algorithm known by its name; usable as a decorator.

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
    name = getattr(algorithm, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"{algorithm.__name__}.name", name, "a word such as 'fedmedian'")
    known = ALGORITHMS.get(name)
    if known and (known.__module__, known.__qualname__) != (
        algorithm.__module__,
        algorithm.__qualname__,
    ):
        raise InputError(f"{algorithm.__name__}.name", name, "a name that is not taken yet")
    ALGORITHMS[name] = algorithm
    return algorithm


for _algorithm in (
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
):
    register_algorithm(_algorithm)


def find_algorithm(name: str) -> type[Algorithm]:
    """The algorithm of that name.

    Example:
        >>> find_algorithm("mifa").memory_aided
        True
    """
    if name not in ALGORITHMS:
        raise InputError("algorithm", name, nearest(name, ALGORITHMS))
    return ALGORITHMS[name]
