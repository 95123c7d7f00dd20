"""The views of a run: which models are evaluated.

``server`` is x^t itself, and ``averaged`` its moving average. Where clients have models of their
own, ``mean`` is the mean of all of them, which only a simulation has, ``reported`` the mean of each
client's last report, which a server can store, and ``corrected`` the moving average plus the mean
of each client's difference to it at its last report.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.errors import InputError
from fedpbc.options import nearest

__all__ = [
    "AVERAGED_WEIGHT",
    "DEPLOYABLE",
    "PAPER_ORDER",
    "STORED_VIEWS",
    "VIEWS",
    "check_deploy_view",
    "paper_view",
    "stores_reports",
    "views_of",
]

VIEWS = ("server", "averaged", "mean", "reported", "corrected")
DEPLOYABLE = ("server", "averaged", "reported", "corrected")
"""The views that a real server could have."""
STORED_VIEWS = frozenset({"reported", "corrected"})
"""The views that need something of each client's last report."""
PAPER_ORDER = ("mean", "server", "averaged", "reported", "corrected")
"""The paper's tables show the first of these that an algorithm has."""
AVERAGED_WEIGHT = 0.05
"""Weight of the newest model in the moving average; only rounds with an upload count."""


def views_of(algorithm: type[Algorithm], names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The views that an algorithm has, or those of them that are named.

    Example:
        >>> from fedpbc.algorithms import FedAvg, FedPBC
        >>> views_of(FedPBC)
        ('server', 'averaged', 'mean', 'reported', 'corrected')
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


def check_deploy_view(algorithm: str, view: str | None, views: Sequence[str]) -> None:
    """Raise InputError unless a view is evaluated, and could be deployed.

    Example:
        >>> check_deploy_view("fedavg", "averaged", ("server", "averaged"))
    """
    deployable = [name for name in views if name in DEPLOYABLE]
    if view is not None and view not in deployable:
        allowed = f"among {', '.join(deployable)} for {algorithm}"
        reason = "left out: none of the evaluated views could be deployed"
        raise InputError("deploy_view", view, allowed if deployable else reason)


def paper_view(views: Sequence[str]) -> str:
    """The view that the paper's tables show: the mean of the clients where they have models."""
    return next(view for view in PAPER_ORDER if view in views)


def stores_reports(algorithm: type[Algorithm], names: Sequence[str] | None = None) -> bool:
    """Whether a view of a run needs what each client reported last."""
    return not STORED_VIEWS.isdisjoint(views_of(algorithm, names))
