"""Names of rows and curves: by what differs between them, and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.conditions import is_ceiling
from fedpbc.experiments.entries import OPTION_START
from fedpbc.options import options_of

__all__ = ["curve_names", "label_parts"]


def label_parts(label: str) -> tuple[str, dict[str, str]]:
    """Split a label into its head and its options.

    Example:
        >>> label_parts("fedau:cutoff=5:data.alpha=0.1")
        ('fedau', {'cutoff': '5', 'data.alpha': '0.1'})
    """
    head, *parts = OPTION_START.split(label)
    pairs = (part.partition("=") for part in parts)
    return head, {key.strip(): value.strip() for key, _, value in pairs}


def curve_names(algorithms: Mapping[str, str]) -> dict[str, str]:
    """Return a short name for each label; ``algorithms`` are the algorithms by label.

    Where all entries have the same algorithm, and differ in settings that are not its own, the
    settings alone are the name.

    Example:
        >>> curve_names({"fedpbc:data.alpha=0.1": "fedpbc", "fedpbc:data.alpha=1": "fedpbc"})
        {'fedpbc:data.alpha=0.1': 'alpha=0.1', 'fedpbc:data.alpha=1': 'alpha=1'}
        >>> list(curve_names({"fedau:cutoff=5": "fedau", "fedau:cutoff=50": "fedau"}).values())
        ['fedau cutoff=5', 'fedau cutoff=50']
    """
    parts = {label: label_parts(label) for label in algorithms}
    short = _short_keys([key for _, options in parts.values() for key in options])
    without_ceilings = [label for label in algorithms if not is_ceiling(label)]
    alone = _settings_suffice(without_ceilings, parts, algorithms)
    names = {}
    for label, (head, options) in parts.items():
        words = [f"{short[key]}={value}" for key, value in options.items()]
        names[label] = " ".join(words if alone and label in without_ceilings else [head, *words])
    # Different labels never share a name.
    return names if len(set(names.values())) == len(names) else {label: label for label in names}


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each dotted key, where no other key has it."""
    distinct = set(keys)
    last = {key: key.rpartition(".")[2] for key in distinct}
    words = list(last.values())
    return {
        key: key if words.count(word) > 1 or word == "name" else word for key, word in last.items()
    }


def _settings_suffice(
    labels: Sequence[str],
    parts: Mapping[str, tuple[str, Mapping[str, str]]],
    algorithms: Mapping[str, str],
) -> bool:
    """Whether the settings of these entries tell them apart, without the algorithm's name."""
    if len(labels) < 2 or len({algorithms[label] for label in labels}) > 1:
        return False
    kind = ALGORITHMS.get(algorithms[labels[0]])
    algorithm_options = set() if kind is None else set(options_of(kind.__init__))
    plain = all(parts[label][0] == algorithms[label] for label in labels)
    return plain and all(
        parts[label][1] and algorithm_options.isdisjoint(parts[label][1]) for label in labels
    )
