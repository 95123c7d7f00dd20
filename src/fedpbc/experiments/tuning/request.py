"""How to search, as it was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.seeds import seed_list
from fedpbc.limits import check_values
from fedpbc.options import check_type

__all__ = ["MOST_CANDIDATES", "TuningRequest"]

MOST_CANDIDATES = 60
"""Of an entry, with whatever budget."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """How to search.

    Attributes:
        algorithms: names and specifications, as of a comparison; None: the configuration's.
        ceiling: also FedAvg with every link up, under the label ``ceiling``.
        space: values by key, in place of the default ones; a single value is not tuned.
        candidates: settings tried per entry, 60 at most.
        budget: rounds of all runs together, instead of a number of candidates.
        minutes: the same as time: the number of candidates follows from the speed of the first.
        seeds: a candidate's score is the mean over these.
        validation: the share of each client's samples that is kept out of training for scoring.
    """

    algorithms: Sequence[str] | None = None
    ceiling: bool = False
    space: Mapping[str, Sequence[Any]] | None = None
    candidates: int | None = None
    budget: int | None = None
    minutes: float | None = None
    seeds: Sequence[int] | str = (0,)
    validation: float | None = None

    def __post_init__(self) -> None:
        names = self.algorithms
        if isinstance(names, str):
            raise InputError("algorithms", names, f"a list, such as ['{names}']")
        if names is not None and not isinstance(names, list | tuple):
            raise InputError("algorithms", names, "a list of names")
        check_type("algorithms", None if names is None else list(names), list[str] | None)
        check_type("ceiling", self.ceiling, bool)
        if self.space is not None:
            _check_space(self.space)
        for option in ("candidates", "budget"):
            value = check_type(option, getattr(self, option), int | None)
            if value is not None and value < 1:
                raise InputError(option, value, "at least 1")
        if self.candidates is not None and self.candidates > MOST_CANDIDATES:
            raise InputError("candidates", self.candidates, f"at most {MOST_CANDIDATES}")
        minutes = check_type("minutes", self.minutes, float | None)
        if minutes is not None and not 0 < minutes < math.inf:
            raise InputError("minutes", minutes, "above 0")
        limits = [self.candidates, self.budget, self.minutes]
        if sum(limit is not None for limit in limits) > 1:
            raise InputError("give one of --candidates, --budget and --minutes, not several")
        object.__setattr__(self, "seeds", seed_list(self.seeds))
        validation = check_type("validation", self.validation, float | None)
        if validation is not None and not 0 < validation < 1:
            raise InputError("validation", validation, "above 0 and below 1")


def _check_space(space: Any) -> None:
    if not isinstance(space, Mapping):
        raise InputError("space", space, "values by setting, such as {'learning_rate': [0.1, 0.2]}")
    check_values(space, "space")
    for key, tried in space.items():
        if not isinstance(tried, list | tuple) or not tried:
            raise InputError(f"space.{key}", tried, "a list of values, such as [0.05, 0.1]")
        if any(value in tried[:k] for k, value in enumerate(tried)):
            raise InputError(f"space.{key}", tried, "different values")
