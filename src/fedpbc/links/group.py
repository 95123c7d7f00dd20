"""Correlated outages: clients in groups that fail together, and clients that come and go.

A client's link is up if all of these hold, each independent of the others:

- its group is up: a two-state Markov chain per group, in its stationary state from round 0;
- it is a member: some clients come late, and members may leave for good;
- it is present: a two-state Markov chain per client, in its stationary state from round 0;
- its own link is up, with probability p_i in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.limits import MAX_CLIENTS
from fedpbc.links.client_data import majority_classes
from fedpbc.links.probabilities import Probability
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["group"]

MeanRounds = Annotated[float, Ge(1), Le(1e9)]


def _assigns_by_class(options: Mapping[str, Any]) -> bool:
    assign = options.get("assign")
    return isinstance(assign, str) and assign == "class"


@link_scheme(reads_data=_assigns_by_class)
def group(
    setting: Setting,
    *,
    groups: Annotated[int, Ge(1), Le(MAX_CLIENTS)] = 5,
    assign: Literal["round_robin", "random", "class"] = "round_robin",
    mean_up: MeanRounds = 40.0,
    mean_down: Annotated[float, Ge(0), Le(1e9)] = 10.0,
    away: Probability = 0.0,
    mean_away: MeanRounds = 20.0,
    late: Probability = 0.0,
    late_rounds: Annotated[int, Ge(1), Le(10**9)] = 100,
    leave: Probability = 0.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Groups of clients fail together; clients may come late, go away and leave for good.

    ``groups`` is the number of groups, and ``assign`` says which client is in which: client i in
    group i mod groups, at random, or by its majority class. ``mean_up`` and ``mean_down`` are the
    mean numbers of rounds for which a group is up and down; a ``mean_down`` of 0 means no outages.

    ``away`` is the probability per round that a client goes away, for ``mean_away`` rounds on
    average. ``late`` is the share of clients that come late, in a round that is uniform from 1 to
    ``late_rounds``. ``leave`` is the probability per round that a client that has come leaves for
    good.

    The probabilities that it yields are the exact marginal ones, before anything is known of any
    round: p_i · P(group up) · P(present) · P(member in round t).

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=3, base_probabilities=[0.5, 1.0])
        >>> [p.tolist() for up, p in group(setting, leave=0.5)]
        [[0.4, 0.8], [0.2, 0.4], [0.1, 0.2]]
    """
    if 0 < mean_down < 1:
        raise InputError(f"{setting.option}.mean_down", mean_down, "0 (no outages), or at least 1")
    # The probability per round of leaving a state is one over its mean length.
    fails, recovers = (1 / mean_up, 1 / mean_down) if mean_down else (0.0, 1.0)
    returns = 1 / mean_away
    # The two chains' stationary probabilities of being up.
    share_up, share_present = recovers / (fails + recovers), returns / (away + returns)

    group_of = _assign(setting, groups, assign)
    comes, leaves = _membership(setting, late, late_rounds, leave)
    group_up = setting.generator("groups", 0).random(groups) < share_up
    present = setting.uniform(0, "away") < share_present if away else None
    share_members = 1 - late
    p = setting.p * (share_up * share_present * share_members)
    for t in range(setting.rounds):
        if t > 0:
            draws = setting.generator("groups", t).random(groups)
            group_up = np.where(group_up, draws >= fails, draws < recovers)
        if t > 0 and present is not None:
            draws = setting.uniform(t, "away")
            present = np.where(present, draws >= away, draws < returns)
        if t > 0 and (late or leave):
            joins = late / late_rounds if t <= late_rounds else 0
            share_members = min(1.0, share_members * (1 - leave) + joins)
            p = setting.p * (share_up * share_present * share_members)
        up = setting.uniform(t) < setting.p
        up &= group_up[group_of]
        if present is not None:
            up &= present
        if late or leave:
            up &= (comes <= t) & (t <= leaves)
        yield up, p


def _assign(setting: Setting, groups: int, assign: str) -> NDArray[np.intp]:
    """Each client's group; it does not depend on the number of clients."""
    if assign == "random":
        return (setting.uniform(0, "group") * groups).astype(np.intp)
    if assign == "class":
        if setting.class_shares is None:
            expected = "'round_robin' or 'random': this task has no classes"
            raise InputError(f"{setting.option}.assign", assign, expected)
        return majority_classes(setting, "group")[0] % groups
    return np.arange(setting.clients) % groups


def _membership(
    setting: Setting, late: float, late_rounds: int, leave: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first and the last round in which each client is a member."""
    comes, stays = np.zeros(setting.clients), np.full(setting.clients, np.inf)
    if late:
        # One draw says both whether a client is late and when it comes.
        draws = setting.uniform(0, "late")
        with np.errstate(over="ignore"):
            comes = np.where(draws < late, 1 + np.floor(draws / late * late_rounds), 0)
    if leave:
        # The number of rounds survived after the first, P(k or more) = (1 − leave)^k, by inversion.
        with np.errstate(divide="ignore", over="ignore"):
            stays = np.floor(np.log1p(-setting.uniform(0, "leave")) / np.log1p(-leave))
    return comes, comes + stays
