"""The options of runs on disk, as text: what must be equal in a comparison, and what may differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpbc.experiments.settings import COMPUTE, EXECUTION, FILES, PLACES
from fedpbc.report.load import LoadedRun, section
from fedpbc.storage.files import read_own_file

__all__ = [
    "LEARNING_RATES",
    "flatten",
    "learning_rates",
    "option_text",
    "shared_options",
    "telling_options",
    "variant",
    "views_text",
    "without_links",
]

LEARNING_RATES = ("train.learning_rate", "train.global_learning_rate")
NOT_SHARED = {
    "algorithm",
    "seed",
    "views",
    *EXECUTION,
    *COMPUTE,
    *(".".join(place) for place in PLACES),
    *LEARNING_RATES,
}
"""What runs of a group may differ in."""
FILE_OPTIONS = {f"{section}.{option}" for section, option in FILES}


def shared_options(run: LoadedRun) -> dict[str, str]:
    """Return what must be equal in a comparison, as text by key; files by their content."""
    options = flatten({k: v for k, v in run.config.items() if k not in NOT_SHARED})
    return {
        key: _file_label(run.path, value)
        if key in FILE_OPTIONS and isinstance(value, str)
        else option_text(value)
        for key, value in sorted(options.items())
        if key not in NOT_SHARED
    }


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys.

    Example:
        >>> flatten({"seed": 0, "data": {"name": "digits"}})
        {'seed': 0, 'data.name': 'digits'}
    """
    options: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            options |= flatten(value, f"{prefix}{key}.")
        else:
            options[f"{prefix}{key}"] = value
    return options


def option_text(value: Any) -> str:
    """Return a short text that is different for different values."""
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values, {_short_hash(json.dumps(value, default=str).encode())}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _file_label(folder: Path, name: str) -> str:
    """Return a file's name with a hash of its content, if it lies in the run's own folder."""
    try:
        return f"{Path(name).name} {_short_hash(read_own_file(folder, name))}"
    except (OSError, ValueError):
        return name


def _short_hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:6]


def learning_rates(run: LoadedRun) -> tuple[str, ...]:
    """Return the local and the global learning rate, as text."""
    options = flatten({"train": section(run.config, "train")})
    return tuple(option_text(options[key]) for key in LEARNING_RATES if key in options)


def variant(run: LoadedRun) -> str:
    """Return the algorithm's options and views as text."""
    options = json.dumps(section(run.config, "algorithm"), sort_keys=True, default=str)
    return f"{options} {views_text(run)}"


def views_text(run: LoadedRun) -> str:
    """Return the evaluated views as text."""
    views = run.config.get("views") or (sorted(run.metrics[0]["views"]) if run.metrics else None)
    return json.dumps(views, default=str)


def telling_options(runs: Sequence[LoadedRun]) -> dict[LoadedRun, dict[str, str]]:
    """Return everything by which runs may be told apart, as text by key, for each."""
    options = {}
    for run in runs:
        rates = flatten({"train": section(run.config, "train")})
        algorithm_options = {
            k: option_text(v) for k, v in section(run.config, "algorithm").items() if k != "name"
        }
        options[run] = {
            **shared_options(run),
            **{key: option_text(rates[key]) for key in LEARNING_RATES if key in rates},
            **algorithm_options,
        }
    return options


def without_links(run: LoadedRun) -> dict[str, str]:
    """Return the shared options but those of the links."""
    links = ("links.", "downlink.")
    return {k: v for k, v in shared_options(run).items() if not k.startswith(links)}
