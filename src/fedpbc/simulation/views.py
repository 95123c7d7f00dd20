"""Which model is judged: the views of a run.

``server`` is x^t itself, and ``averaged`` its moving average, which a server can keep. Where the
clients have models of their own, ``mean`` is the mean of them all, which only a simulation has, and
``reported`` the mean of what each client reported last, which a server can keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.errors import InputError
from fedpbc.options import nearest

__all__ = ["AVERAGED_WEIGHT", "DEPLOYABLE", "VIEWS", "paper_view", "views_of"]

VIEWS = ("server", "averaged", "mean", "reported")
DEPLOYABLE = ("server", "averaged", "reported")
"""What a real server could have."""
AVERAGED_WEIGHT = 0.05
"""Of the newest model in the moving average, for each round in which some client got through."""


def views_of(algorithm: type[Algorithm], wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """The views that an algorithm has, or those of them that are wanted.

    Example:
        >>> from fedpbc.algorithms import FedAvg, FedPBC
        >>> views_of(FedPBC)
        ('server', 'averaged', 'mean', 'reported')
        >>> views_of(FedAvg, ["server", "mean"])
        ('server',)
    """
    if isinstance(wanted, str):
        raise InputError("views", wanted, f"a list, such as ['{wanted}']")
    for view in wanted or ():
        if view not in VIEWS:
            raise InputError("views", view, nearest(view, VIEWS))
    has = VIEWS if algorithm.client_models else ("server", "averaged")
    chosen = tuple(view for view in has if wanted is None or view in wanted)
    if not chosen:
        given = ",".join(wanted or ())
        raise InputError("views", given, f"among {', '.join(has)} for {algorithm.name}")
    return chosen


def paper_view(views: Sequence[str]) -> str:
    """The view that the paper's tables show: the mean of the clients where they have models.

    Example:
        >>> paper_view(("server", "averaged", "mean", "reported"))
        'mean'
    """
    return next(view for view in ("mean", "server", "averaged", "reported") if view in views)


def models_on_server(algorithm: type[Algorithm], view: str, clients: int) -> int | None:
    """How many models a server keeps to have a view; None for the mean, which none could have.

    Example:
        >>> from fedpbc.algorithms import FedPBC
        >>> models_on_server(FedPBC, "reported", clients=100)
        101
    """
    if view not in DEPLOYABLE:
        return None
    return algorithm.models_on_server(clients) + {"averaged": 1, "reported": clients}.get(view, 0)


def cost_of(algorithm: type[Algorithm], clients: int, views: tuple[str, ...]) -> dict[str, Any]:
    """How many models the server keeps for each view, and each client.

    Example:
        >>> from fedpbc.algorithms import MIFA
        >>> cost_of(MIFA, 100, ("server", "averaged"))["models_on_server"]
        {'server': 101, 'averaged': 102}
    """
    return {
        "models_on_server": {view: models_on_server(algorithm, view, clients) for view in views},
        "models_on_client": algorithm.models_on_client,
        "vectors_per_upload": algorithm.vectors_per_upload,
        "memory_aided": algorithm.memory_aided,
    }
