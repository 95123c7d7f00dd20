"""Whether a number measured here and one of the paper's are of the same experiment.

docs/paper.md lists where the released code departs from the paper's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpbc.experiments.settings import COMPUTE, EXECUTION
from fedpbc.paper.plan import full_rounds
from fedpbc.report.groups import flatten
from fedpbc.text import listed

__all__ = ["DEPARTS", "changed_settings", "departures", "share_of_rounds"]

DEPARTS = "§"
"""Marks a number of the paper's for which the released code computed something else."""
SAME_EXPERIMENT = {
    *(*EXECUTION, *COMPUTE, "evaluate_every", "evaluate_every_at_end", "views"),
    *("data.dir", "data.train_samples", "train.learning_rate", "train.global_learning_rate"),
}
"""Settings that leave the experiment as it is; the paper's step sizes were tuned, too."""
PAPER: Mapping[str, Any] = {
    **{"clients": 100, "data.alpha": 0.1, "links.sigma": 10.0, "links.delta": 0.02},
    **{"train.local_steps": 5, "train.batch_size": 16},
}
"""The paper's values, which may be said as well."""
LINKS = {
    "markov_varying": "markov_varying: its chain begins anew in every round, which is plain "
    "bernoulli_varying",
    "cyclic_reset": "cyclic_reset: its up times are shorter, as with links.gamma=0.4",
}
ALGORITHMS = {
    "fedavg_known": "fedavg_known: it divides every client's update by the last client's p",
    "f3ast": "f3ast: it mistakes places in the list of active clients for clients",
}


def share_of_rounds(data: str, rounds: int) -> str:
    """How much of the paper's rounds was run; empty if it was as many.

    Example:
        >>> share_of_rounds("cifar10", 100), share_of_rounds("svhn", 4000)
        ("1 % of the paper's rounds", '')
    """
    paper = full_rounds(data)
    return "" if rounds == paper else f"{100 * rounds / paper:.4g} % of the paper's rounds"


def changed_settings(settings: Mapping[str, Any]) -> str:
    """What was set by hand that makes another experiment of it; empty if nothing.

    Example:
        >>> changed_settings({"clients": 8, "data": {"alpha": 1.0}, "engine": "serial"})
        'other settings than the paper (clients and data.alpha)'
    """
    given = flatten(settings)
    changed = sorted(k for k in given if k not in SAME_EXPERIMENT and given[k] != PAPER.get(k))
    return f"other settings than the paper ({listed(changed)})" if changed else ""


def departures(algorithm: str, links: Mapping[str, Any]) -> list[str]:
    """What the released code computed instead of what the text says, and is computed here.

    Example:
        >>> departures("f3ast", {"name": "bernoulli"})
        ['f3ast: it mistakes places in the list of active clients for clients']
        >>> departures("fedavg", {"name": "cyclic_reset", "gamma": 0.4})
        []
    """
    as_released = links["name"] == "cyclic_reset" and links.get("gamma", 0) > 0
    of_links = None if as_released else LINKS.get(links["name"])
    return [text for text in (of_links, ALGORITHMS.get(algorithm)) if text]
