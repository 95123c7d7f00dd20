"""Under which conditions runs were made: what must be equal for a comparison to mean something.

An algorithm's options and its step sizes may differ between the rows of a comparison; the data,
the model and the links may not. A sweep over one of those makes several comparisons in one. The
ceiling has other links by its nature, and belongs to all conditions that differ in links only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "CEILING",
    "EVERY_LINK_UP",
    "FEDAVG",
    "LINKS",
    "NOT_OF_THE_CEILING",
    "Condition",
    "condition_of",
    "is_ceiling",
]

CEILING = "ceiling"
"""The label of the same training with every link up."""
FEDAVG = "fedavg"
"""Whose training the ceiling is."""
LINKS = ("links", "downlink")
EVERY_LINK_UP: Mapping[str, Any] = {"links": {"name": "always"}, "downlink": {"name": "always"}}
NOT_OF_THE_CEILING = (*LINKS, "deploy_view")
"""Settings of FedAvg that its ceiling does not take over: what suits links that fail."""
NOT_OF_THE_PROBLEM = (
    *(
        "train",
        "global_lr",
        "views",
        "deploy_view",
        "engine",
        "workers",
        "ray_address",
        "device",
        "reported",
    ),
    *("evaluate_every", "evaluate_every_at_end", "checkpoint_every"),
    *("track", "out", "group", "on_round"),
)
"""How an algorithm is run, not what it is run on."""


class Condition(NamedTuple):
    """The settings of the problem and of the links that an entry has for itself, as text."""

    problem: str = ""
    links: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


def condition_of(settings: Mapping[str, Any], *, ceiling: bool = False) -> Condition:
    """The conditions that an entry's own settings make.

    Example:
        >>> str(condition_of({"data": {"alpha": 0.1}, "train": {"learning_rate": 0.2}}))
        'data.alpha=0.1'
        >>> condition_of({"links": "markov"}), condition_of({"links": "always"}, ceiling=True)
        (Condition(problem='', links='links=markov'), Condition(problem='', links=''))
    """
    texts: dict[bool, list[str]] = {True: [], False: []}
    for key, value in settings.items():
        if key in NOT_OF_THE_PROBLEM:
            continue
        table = value if isinstance(value, Mapping) else {"": value}
        for option, inner in table.items():
            short = f"{key}.{option}" if option and option != "name" else key
            texts[key in LINKS].append(f"{short}={_text(inner)}")
    return Condition(
        ", ".join(sorted(texts[False])), "" if ceiling else ", ".join(sorted(texts[True]))
    )


def _text(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def is_ceiling(label: str) -> bool:
    """Whether a label is that of a ceiling: the same training with every link up.

    Example:
        >>> is_ceiling("ceiling"), is_ceiling("ceiling:data.alpha=0.1"), is_ceiling("fedavg")
        (True, True, False)
    """
    # In short names of curves, options follow a space.
    return label == CEILING or label.startswith((f"{CEILING}:", f"{CEILING} "))
