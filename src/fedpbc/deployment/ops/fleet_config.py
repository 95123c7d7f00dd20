"""A new fleet's options from a configuration that 'fedpbc tune' or 'fedpbc advise' wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedpbc.data import find_source
from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import configuration_values
from fedpbc.experiments.settings import TrainSection

__all__ = ["fleet_options"]


def fleet_options(file: Path, *, trust: bool = False) -> dict[str, Any]:
    """The options of a fleet that trains as a configuration's runs do, as of ``FleetPlan``.

    Links, seeds and engines are of simulations. The number of clients is only that of a fleet if
    the task is an app's.
    """
    values = configuration_values(file, trust=trust)
    if "algorithms" in values:
        raise InputError(
            "config", str(file), "a configuration of one algorithm, such as tuned-fedau.toml"
        )
    config = Config.from_dict(values, lenient=True)
    if config.task.name not in ("classification", "app"):
        expected = "one with a data set or an app: quadratics are for simulations"
        raise InputError("config", str(file), expected)
    options = dict(config.algorithm)
    shared_options: dict[str, Any] = {
        "algorithm": options.pop("name"),
        "options": options,
        "rounds": config.general.rounds,
        "clients": config.general.clients,
        "train": _given(config),
    }
    if config.task.app is not None:
        return {**shared_options, "app": Path(config.task.app)}
    usual = find_source(config.data.name).model
    model = config.model.name
    return {
        **shared_options,
        "data": config.data.name,
        "alpha": config.data.alpha,
        "model": None if model == usual and not config.model_options else model,
        "data_options": dict(config.data_options),
        "model_options": dict(config.model_options),
    }


def _given(config: Config) -> dict[str, Any]:
    """The settings of the training that are not the defaults."""
    train, defaults = asdict(config.train), asdict(TrainSection())
    if config.task.name == "classification":
        defaults |= find_source(config.data.name).settings.get("train", {})
    return {k: v for k, v in train.items() if v is not None and v != defaults[k]}
