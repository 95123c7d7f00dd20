"""Links that follow the time of day: a client is up in the window of its majority class.

A day has D rounds. The window of class c of C begins at c/C of the day; by default it ends where
that of class c + 1 begins. After Eichner, Koren, McMahan, Srebro, Talwar: Semi-Cyclic Stochastic
Gradient Descent, ICML 2019, and the mode "YC" of FLGo (github.com/WwZzz/easyFL).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from fedpbc.links.client_data import majority_classes
from fedpbc.links.probabilities import Probability
from fedpbc.links.scheme import Probabilities, Row, Setting, link_scheme

__all__ = ["label_cyclic"]


@link_scheme(independent=True, reads_data=True)
def label_cyclic(
    setting: Setting,
    *,
    day: Annotated[int, Ge(1), Le(10**9)] = 24,
    window: Annotated[float, Ge(0), Le(1)] = 0.0,
    inside: Probability = 1.0,
    outside: Probability = 0.0,
) -> Iterator[tuple[Row, Probabilities]]:
    """Up while the time of day is in the window of the client's majority class.

    ``day`` is the length of a day in rounds; ``window`` the length of a window as a share of the
    day, where 0 stands for one over the number of classes; ``inside`` and ``outside`` are the
    probabilities of being up in the window and out of it. A window has at least one round.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=4, class_shares=[[0.9, 0.1], [0.3, 0.7]])
        >>> [up.tolist() for up, p in label_cyclic(setting, day=4)]
        [[True, False], [True, False], [False, True], [False, True]]
    """
    majority, classes = majority_classes(setting, "label_cyclic")
    # In units of 1/C rounds a day, a round and the start of each window are whole numbers.
    length = day if window == 0 else math.ceil(window * (day * classes) - 1e-9)
    length = max(length, classes)
    starts = np.arange(classes) * day
    for t in range(setting.rounds):
        elapsed = (t % day * classes - starts) % (day * classes)
        p = np.where(elapsed < length, inside, outside)[majority]
        yield setting.uniform(t) < p, p
