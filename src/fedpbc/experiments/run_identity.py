"""Whether a directory holds the run that is to go on there, and not one with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.config_file import read_own_toml
from fedpbc.experiments.configuration import Config, identity
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.trust import check_trust

__all__ = ["check_same_run"]

COMPLETED = {"clients", "rounds"}
"""What a run's configuration says although nobody gave it: the task or a timetable decides."""


def check_same_run(directory: RunDirectory, config: Config) -> None:
    """Raise InputError if the run in a directory is not the one of this configuration.

    A plan that was lost and written anew may find runs of the old one in its folders.
    """
    values = read_own_toml(directory.config_path)
    check_trust(directory.path, values)
    there = _identity(Config.from_dict(values, lenient=True))
    here = _identity(config)
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if differing and {*differing} <= COMPLETED:
        here = _identity(build_experiment(config).config)
        differing = [key for key in differing if there.get(key) != here.get(key)]
    if differing:
        # What nobody gave says less than what somebody did.
        differing.sort(key=lambda key: key in {*COMPLETED, "views"})
        raise InputError(
            f"{directory.path} holds another run, with another {differing[0]}; remove it, or "
            "choose a new folder"
        )


def _identity(config: Config) -> dict[str, Any]:
    """Everything that identifies a run, by dotted key; files by content."""
    nested, inputs = config.self_contained()
    flat: dict[str, Any] = {}
    for key, value in identity(nested).items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{option}": inner for option, inner in value.items()}
        else:
            flat[key] = value
    return flat | {f"inputs/{name}": sha256(content).digest() for name, content in inputs.items()}
