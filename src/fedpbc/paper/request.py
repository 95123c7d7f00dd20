"""What an experiment was asked for: checked, and as the command that asks for it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpbc.algorithms import find_algorithm
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.plugins import load_plugin
from fedpbc.paper.experiment import ExperimentRequest, flat

__all__ = [
    "algorithms_of",
    "check_settings",
    "merged",
    "options_of_algorithm",
    "rounds_of",
    "seeds_of",
]


def seeds_of(wanted: ExperimentRequest, default: Sequence[int]) -> list[int]:
    """The seeds: different whole numbers from 0.

    Example:
        >>> from pathlib import Path
        >>> seeds_of(ExperimentRequest(out=Path("x")), (0, 1, 2))
        [0, 1, 2]
    """
    seeds = list(default if wanted.seeds is None else wanted.seeds)
    if not seeds or len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as 0,1,2")
    return seeds


def rounds_of(wanted: ExperimentRequest, default: int, least: int = 1, why: str = "") -> int:
    """T.

    Example:
        >>> from pathlib import Path
        >>> rounds_of(ExperimentRequest(out=Path("x"), rounds=7), 2500)
        7
    """
    rounds = default if wanted.rounds is None else wanted.rounds
    if rounds < least:
        raise InputError("rounds", rounds, f"at least {least}{why}")
    return rounds


def algorithms_of(wanted: ExperimentRequest, default: Sequence[str]) -> list[str]:
    """The algorithms' names, each once; plugins are loaded first.

    Example:
        >>> from pathlib import Path
        >>> algorithms_of(ExperimentRequest(out=Path("x"), algorithms=["mifa"]), ("fedavg",))
        ['mifa']
    """
    for plugin in wanted.settings.get("plugins", ()):
        load_plugin(str(plugin))
    names = list(default if wanted.algorithms is None else wanted.algorithms)
    if not names or len(set(names)) < len(names):
        raise InputError("algorithms", names, "different names, such as fedavg,fedpbc")
    return [find_algorithm(name).name for name in names]


def options_of_algorithm(wanted: ExperimentRequest, name: str) -> dict[str, Any]:
    """An algorithm with its own options, from ``--set algorithms.NAME.OPTION=VALUE``.

    Example:
        >>> from pathlib import Path
        >>> settings = {"algorithms": {"fedau": {"cutoff": 20}}}
        >>> wanted = ExperimentRequest(out=Path("x"), settings=settings)
        >>> options_of_algorithm(wanted, "fedau")
        {'name': 'fedau', 'cutoff': 20}
    """
    return {"name": name, **wanted.settings.get("algorithms", {}).get(name, {})}


def check_settings(name: str, wanted: ExperimentRequest, known: Sequence[str]) -> None:
    """Refuse options that the experiment itself decides on.

    Args:
        name: the experiment's.
        wanted: whose settings.
        known: what may be set: a section (``train``), or one option of it (``links.sigma``).

    Example:
        >>> from pathlib import Path
        >>> wanted = ExperimentRequest(out=Path("x"), settings={"seed": 3})
        >>> check_settings("fig2", wanted, ["engine"])
        Traceback (most recent call last):
        fedpbc.errors.InputError: seed is given, but should be left out: fig2 takes only engine here
    """
    for key, _ in flat(wanted.settings):
        if not any(key == k or key.startswith(f"{k}.") for k in known):
            right = f"left out: {name} takes only {', '.join(known)} here"
            raise InputError(key, Verbatim("given"), right)


def merged(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with what was given in it, section by section.

    Example:
        >>> merged({"train": {"decay": False}}, {"train": {"local_steps": 7}, "engine": "serial"})
        {'train': {'decay': False, 'local_steps': 7}, 'engine': 'serial'}
    """
    both = dict(ours)
    for key, value in given.items():
        is_section = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = {**both[key], **value} if is_section else value
    return both
