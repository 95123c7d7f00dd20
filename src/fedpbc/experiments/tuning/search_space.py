"""Which settings a search tries.

Step sizes are tried for every algorithm, and the options that its class names in
``tuned_options``. The first candidates differ from the default in η_0 alone, the nearest first,
because it matters most; the others are drawn from all combinations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpbc.algorithms import find_algorithm
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.settings import TrainSection
from fedpbc.randomness import generator

__all__ = [
    "LEARNING_RATE",
    "SearchSpace",
    "Settings",
    "default_space",
    "resolve_space",
    "tuned_key",
]

LEARNING_RATE = "train.learning_rate"
GLOBAL_LEARNING_RATE = "train.global_learning_rate"
FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 16.0)
"""η_0 is tried at these multiples of the configured one, in this order."""
GLOBAL_FACTORS = (1.0, 0.5, 1.5)
LARGEST = 10**6
"""A space of at most so many combinations is listed in full, before it is drawn from."""

Settings = dict[str, Any]
"""Values by dotted key, such as ``train.learning_rate`` or ``algorithm.cutoff``."""


@dataclass(frozen=True)
class SearchSpace:
    """The values of each setting; the first of each is the default.

    Example:
        >>> space = SearchSpace({"train.learning_rate": (0.1, 0.2), "algorithm.cutoff": (50, 5)})
        >>> space.candidates(3, seed=0)[:2]
        [{'train.learning_rate': 0.1, 'algorithm.cutoff': 50}, \
{'train.learning_rate': 0.2, 'algorithm.cutoff': 50}]
        >>> len(space.candidates(100, seed=0))
        4
    """

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(len(values) for values in self.values.values())

    def candidates(self, count: int, seed: int) -> list[Settings]:
        """The default, then η_0 alone, then other combinations at random; each once."""
        default = {key: values[0] for key, values in self.values.items()}
        line = [{**default, LEARNING_RATE: rate} for rate in self.values.get(LEARNING_RATE, ())]
        chosen = [default, *(settings for settings in line if settings != default)][:count]
        for index in self._order(seed):
            if len(chosen) >= count:
                break
            settings = self._combination(index)
            if settings not in chosen:
                chosen.append(settings)
        return chosen

    def _order(self, seed: int) -> Iterator[int]:
        """The numbers of combinations in random order, of a large space with repetitions."""
        draw = generator(seed, "candidates")
        if self.size <= LARGEST:
            yield from map(int, draw.permutation(self.size))
        while self.size > LARGEST:
            yield int(draw.integers(self.size))

    def _combination(self, index: int) -> Settings:
        settings: Settings = {}
        for key, values in self.values.items():
            index, position = divmod(index, len(values))
            settings[key] = values[position]
        return settings


def default_space(config: Config, fixed: Collection[str] = ()) -> SearchSpace:
    """Multiples of the configured step sizes, and the algorithm's ``tuned_options``.

    The settings in ``fixed`` keep the configured value.
    """
    kind = find_algorithm(config.algorithm["name"])
    eta, eta_g = config.train.learning_rate, config.train.global_learning_rate
    values: dict[str, Sequence[Any]] = {
        LEARNING_RATE: _multiples(eta, FACTORS),
        GLOBAL_LEARNING_RATE: _multiples(eta_g, GLOBAL_FACTORS),
    }
    for option, tried in kind.tuned_options.items():
        if option not in config.algorithm:
            continue  # Inherited from a class with more options.
        default = config.algorithm[option]
        values[f"algorithm.{option}"] = [default, *(v for v in tried if v != default)]
    return SearchSpace({k: v[:1] if k in fixed else v for k, v in values.items()})


def _multiples(configured: float, factors: Sequence[float]) -> list[float]:
    """The configured value as it is, and its multiples without digits that arithmetic has added."""
    first, *others = factors
    return [first * configured, *(float(f"{configured * factor:.6g}") for factor in others)]


def resolve_space(
    given: Mapping[str, Sequence[Any]], label: str, config: Config, fixed: Collection[str] = ()
) -> SearchSpace:
    """The default space with the values that were given; a single one means: not tuned.

    Keys are options of the algorithm (``cutoff``, or ``fedau.cutoff`` for that one only) or of the
    local training (``learning_rate``, ``train.learning_rate`` or ``ceiling.learning_rate``). The
    configured value is tried first if it is among those given. Keys of others are skipped, and
    what names the entry or its algorithm takes precedence over what holds for all.
    """
    values = dict(default_space(config, fixed).values)
    for key, tried in sorted(given.items(), key=lambda item: _names_an_entry(item[0])):
        name = tuned_key(key, label, config)
        if name is not None and name not in fixed:
            section, _, option = name.partition(".")
            default = config.to_dict()[section].get(option)
            values[name] = [v for v in tried if v == default] + [v for v in tried if v != default]
    return SearchSpace(values)


def _names_an_entry(key: str) -> bool:
    owner, dot, _ = key.rpartition(".")
    return bool(dot) and owner not in ("train", "algorithm")


def tuned_key(key: str, label: str, config: Config) -> str | None:
    """The dotted key of a setting; None if neither the algorithm nor local training has it."""
    owner, _, option = key.rpartition(".")
    # The ceiling is FedAvg's, but not FedAvg: it has step sizes of its own.
    owners = ("", label) if is_ceiling(label) else ("", label, config.algorithm["name"])
    if owner in (*owners, "algorithm") and option != "name" and option in config.algorithm:
        return f"algorithm.{option}"
    if owner in (*owners, "train") and option in TrainSection.__dataclass_fields__:
        return f"train.{option}"
    return None
