"""Checked values of a request: seeds, rounds, algorithms, data sets and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpbc.algorithms import find_algorithm
from fedpbc.data.sources import SOURCES
from fedpbc.errors import InputError
from fedpbc.limits import MAX_ROUNDS, check_values
from fedpbc.options import nearest
from fedpbc.paper.catalog import ExperimentRequest
from fedpbc.report.groups import flatten
from fedpbc.storage.files import expanded

__all__ = [
    "algorithm_options",
    "check_settings",
    "data_folders",
    "merge",
    "requested_algorithms",
    "requested_data",
    "requested_links",
    "requested_rounds",
    "requested_seeds",
]


def requested_seeds(
    request: ExperimentRequest,
    default: Sequence[int] = (0, 1, 2),
    quick: Sequence[int] | None = None,
) -> list[int]:
    """The seeds, or the default ones; ``quick``: other defaults with ``--quick``."""
    if request.quick and quick is not None:
        default = quick
    seeds = list(default if request.seeds is None else request.seeds)
    check_values(seeds, "seeds")
    if not seeds or len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
        raise InputError("seeds", seeds, "different whole numbers from 0, such as 0,1,2")
    return seeds


def requested_rounds(
    request: ExperimentRequest, default: int, minimum: int = 1, reason: str = ""
) -> int:
    """T, or the default; ``reason`` explains the minimum in the error message."""
    rounds = default if request.rounds is None else request.rounds
    if rounds < minimum:
        raise InputError("rounds", rounds, f"at least {minimum}{reason}")
    if rounds > MAX_ROUNDS:
        raise InputError("rounds", rounds, f"at most {MAX_ROUNDS}")
    return rounds


def requested_algorithms(request: ExperimentRequest, default: Sequence[str]) -> list[str]:
    """The names of the algorithms, or the default ones."""
    names = _distinct_names("algorithms", request.algorithms, default)
    options = request.settings.get("algorithms", {})
    if not isinstance(options, Mapping):
        raise InputError("'--set algorithms' is not allowed here: use --algorithms")
    for name in options:
        if options[name] and name not in names:
            raise InputError(
                f"'--set algorithms.{name}' names an algorithm that is not run here; these are: "
                f"{', '.join(names)}"
            )
    return [find_algorithm(name).name for name in names]


def requested_data(request: ExperimentRequest, default: Sequence[str]) -> list[str]:
    """The names of the data sets, or the default ones."""
    names = _distinct_names("data", request.data, default)
    for name in names:
        if name not in SOURCES:
            raise InputError("data", name, nearest(name, SOURCES))
    return names


def requested_links(request: ExperimentRequest, default: Sequence[str]) -> list[str]:
    """The names of the link schemes, or the default ones."""
    return _distinct_names("links", request.links, default)


def _distinct_names(option: str, names: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    chosen = list(default if names is None else names)
    if not chosen or len(set(chosen)) != len(chosen):
        raise InputError(option, chosen, "different names, at least one")
    return chosen


def algorithm_options(request: ExperimentRequest, name: str) -> dict[str, Any]:
    """An algorithm with its options, from ``--set algorithms.NAME.OPTION=VALUE``."""
    return {"name": name, **request.settings.get("algorithms", {}).get(name, {})}


def check_settings(name: str, request: ExperimentRequest, allowed: Sequence[str]) -> None:
    """Refuse settings that the experiment fixes itself.

    ``allowed`` lists sections (``train``) and single options (``links.sigma``).
    """
    for key in flatten(request.settings):
        if not any(key == option or key.startswith(f"{option}.") for option in allowed):
            raise InputError(
                f"{key} cannot be set for {name}, which takes only {', '.join(allowed)}"
            )


def data_folders(request: ExperimentRequest, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The option ``data.dir`` of each data set: ``--data-dir``, or its subfolder of that name."""
    folders: dict[str, dict[str, str]] = {name: {} for name in names}
    if request.data_dir is None:
        return folders
    parent = expanded(request.data_dir, "--data-dir")
    downloaded = [name for name in folders if SOURCES[name].repository]
    if not downloaded:
        raise InputError(
            f"--data-dir is not needed for {', '.join(folders)}: the data is in the package"
        )
    if not parent.is_dir():
        raise InputError("--data-dir", str(parent), "an existing folder")
    for name in downloaded:
        repository, subfolder = SOURCES[name].repository, parent / name
        has_own = subfolder.is_dir() or (parent / repository).is_dir()
        if len(downloaded) > 1 and not has_own:
            # Files directly in it could belong to any one of the data sets, but not to all.
            raise InputError("--data-dir", str(parent), f"a folder with {repository}/ or {name}/")
        folders[name] = {"dir": str((subfolder if subfolder.is_dir() else parent).resolve())}
    return folders


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; later ones take precedence."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            existing = result.get(key)
            if isinstance(value, Mapping) and isinstance(existing, Mapping):
                value = merge(existing, value)
            result[key] = value
    return result
