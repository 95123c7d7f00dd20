"""Checks of what a strategy is made and started with, before anything happens."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpbc.aggregation import Aggregation
from fedpbc.errors import InputError
from fedpbc.flower.array_layout import initial_vector
from fedpbc.flower.messages import PROTOCOL
from fedpbc.limits import MAX_CLIENTS, MAX_LOCAL_STEPS, MAX_ROUNDS, MAX_SECONDS, check_path
from fedpbc.links.link_log import is_link_log
from fedpbc.options import check_kind, check_type, checked

__all__ = [
    "FLOWER_OPTIONS",
    "check_rate",
    "checked_aggregation",
    "checked_file",
    "checked_flower_options",
    "checked_link_log",
    "checked_numbers",
    "checked_start",
]

FLOWER_OPTIONS = tuple(inspect.signature(FedAvg.__init__).parameters)[1:]
NUMBERS: dict[str, Any] = {
    "clients": Annotated[int, Ge(1), Le(MAX_CLIENTS)] | None,
    "local_steps": Annotated[int, Ge(1), Le(MAX_LOCAL_STEPS)] | None,
    "global_lr": Annotated[float, Gt(0)],
    "norm_factor": Annotated[float, Ge(0)],
    "norm_bound": Annotated[float, Ge(0)],
}
RATE = Annotated[float, Gt(0)]


def checked_numbers(**given: Any) -> dict[str, Any]:
    """The strategy's numbers; raises InputError for one that is out of bounds."""
    return {name: check_type(name, value, NUMBERS[name]) for name, value in given.items()}


def check_rate(rate: Any, round: int | None = None) -> float:
    """A step size, or what the app's own function of the round returned for one."""
    name = "learning_rate" if round is None else f"learning_rate({round})"
    value: float = check_type(name, rate, RATE)
    return value


def checked_aggregation(given: Any) -> Aggregation:
    """How uploads are combined: by name, by its settings, or as an :class:`Aggregation`.

    Example:
        >>> checked_aggregation({"name": "trimmed_mean", "trim": 0.1}).trim
        0.1
    """
    if isinstance(given, Aggregation):
        return given
    values = {"name": given} if isinstance(given, str) else given
    kind = "the name of an aggregation, a mapping with its settings, or an Aggregation"
    check_kind("aggregation", values, Mapping, kind)
    return Aggregation(**checked(Aggregation, values, "aggregation"))


def checked_file(name: str, file: Any) -> Path | None:
    """A file that can be written after each round, as far as that is known now."""
    if file is None:
        return None
    check_path(file, name)
    path = Path(file)
    try:
        if not path.absolute().parent.is_dir():
            raise InputError(name, str(file), "a file in a folder that exists")
        if path.exists() and not path.is_file():
            raise InputError(name, str(file), "a file; this is something else")
    except OSError as error:  # A name that is too long, or links in a circle.
        raise InputError(name, str(file), f"a file ({error.strerror})") from None
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise InputError(name, str(file), "a file in a folder that can be written to")
    return path


def checked_link_log(name: str, file: Any) -> Path | None:
    """A file for the log of links: a new one, or an earlier log, which is replaced."""
    path = checked_file(name, file)
    if path is None:
        return None
    try:
        if path.exists() and path.stat().st_size and not is_link_log(path):
            raise InputError(name, str(file), "a new file, or an earlier log of links")
    except OSError as error:
        raise InputError(name, str(file), f"a file that can be read ({error.strerror})") from None
    return path


def checked_flower_options(arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's options by name, checked: Flower itself would fail in the first round."""
    if len(arguments) > len(FLOWER_OPTIONS):
        raise InputError(f"there are {len(FLOWER_OPTIONS)} options of Flower, not {len(arguments)}")
    values = dict(zip(FLOWER_OPTIONS, arguments, strict=False))
    for name, value in options.items():
        if name in values:
            raise InputError(f"{name} is given twice: by position and by keyword")
        values[name] = value
    for name, value in values.items():
        if name.startswith("fraction_"):
            values[name] = check_type(name, value, Annotated[float, Ge(0), Le(1)])
        elif name.startswith("min_"):
            values[name] = check_type(name, value, Annotated[int, Ge(0), Le(MAX_CLIENTS)])
        elif name.endswith("_key"):
            values[name] = check_type(name, value, str)
            if not value or value.startswith(PROTOCOL):
                raise InputError(name, value, f"a text that does not begin with '{PROTOCOL}'")
        elif value is not None and not callable(value):
            raise InputError(name, value, "a function, or None")
    keys = [values.get(name, name) for name in ("arrayrecord_key", "configrecord_key")]
    if keys[0] == keys[1]:
        raise InputError("configrecord_key", keys[1], "another one than arrayrecord_key")
    return values


def checked_start(
    grid: Any,
    initial_arrays: Any,
    rounds: Any,
    timeout: Any,
    train_config: Any,
    evaluate_config: Any,
    evaluate_fn: Any,
) -> tuple[int, float | None]:
    """The number of rounds and the timeout of a job, whose other arguments are checked, too."""
    check_kind("grid", grid, Grid, "Flower's Grid, which the server app's main function is given")
    check_kind("initial_arrays", initial_arrays, ArrayRecord, "an ArrayRecord")
    # Here, before a function of the app is given them.
    initial_vector(initial_arrays)
    for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
        check_kind(name, config, (ConfigRecord, type(None)), "a ConfigRecord, or None")
    check_kind("evaluate_fn", evaluate_fn, (Callable, type(None)), "a function, or None")  # type: ignore[arg-type]
    number: int = check_type("num_rounds", rounds, Annotated[int, Ge(0), Le(MAX_ROUNDS)])
    seconds: float | None = check_type(
        "timeout", timeout, Annotated[float, Gt(0), Le(MAX_SECONDS)] | None
    )
    return number, seconds
