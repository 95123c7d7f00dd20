"""The views of a run: which models are evaluated.

``server`` is x^t itself, and ``averaged`` its moving average. Where clients have models of their
own, ``mean`` is the mean of all of them, which only a simulation has, and ``reported`` the mean of
each client's last report, which a server can store.
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
"""The views that a real server could have."""
AVERAGED_WEIGHT = 0.05
"""Weight of the newest model in the moving average; only rounds with an upload count."""


def views_of(algorithm: type[Algorithm], names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The views that an algorithm has, or those of them that are named.

    Example:
        >>> from fedpbc.algorithms import FedAvg, FedPBC
        >>> views_of(FedPBC)
        ('server', 'averaged', 'mean', 'reported')
        >>> views_of(FedAvg, ["server", "mean"])
        ('server',)
    """
    if isinstance(names, str):
        raise InputError("views", names, f"a list, such as ['{names}']")
    if not isinstance(names, Sequence | None):
        raise InputError("views", names, "a list of names")
    for name in names or ():
        if name not in VIEWS:
            raise InputError("views", name, nearest(str(name), VIEWS))
    available = VIEWS if algorithm.client_models else ("server", "averaged")
    views = tuple(view for view in available if names is None or view in names)
    if not views:
        allowed = f"among {', '.join(available)} for {algorithm.name}"
        raise InputError("views", ",".join(names or ()), allowed)
    return views


def paper_view(views: Sequence[str]) -> str:
    """The view that the paper's tables show: the mean of the clients where they have models."""
    return next(view for view in ("mean", "server", "averaged", "reported") if view in views)


def models_on_server(algorithm: type[Algorithm], view: str, clients: int) -> int | None:
    """How many models a server stores for a view; None for the mean, which none could have."""
    if view not in DEPLOYABLE:
        return None
    return algorithm.models_on_server(clients) + {"averaged": 1, "reported": clients}.get(view, 0)


def cost_of(algorithm: type[Algorithm], clients: int, views: tuple[str, ...]) -> dict[str, Any]:
    """What an algorithm stores and sends, as in a run's summary."""
    return {
        "models_on_server": {view: models_on_server(algorithm, view, clients) for view in views},
        "models_on_client": algorithm.models_on_client,
        "vectors_per_upload": algorithm.vectors_per_upload,
        "memory_aided": algorithm.memory_aided,
    }
