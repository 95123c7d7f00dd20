"""What can be chosen by name in each section of a run, and what options it has.

Nothing is imported before it is looked up: ``--help`` reads the settings, and must be quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from fedpbc import defaults
from fedpbc.choices import CodeFile, Folder, InputFile, Registry, find_in
from fedpbc.errors import InputError
from fedpbc.limits import MAX_WORKERS
from fedpbc.options import Help, Option, options_of
from fedpbc.tasks.loss_names import LossName
from fedpbc.tasks.schedules import HORIZONS

__all__ = [
    "PYTHON",
    "SHARED",
    "TIMETABLE",
    "aggregations",
    "algorithms",
    "data_sets",
    "downlinks",
    "engines",
    "models",
    "optimizers",
    "schedules",
    "tasks",
    "uplinks",
]

PYTHON = "python:"
"""Before the name of a function that only a task made in Python has."""
TIMETABLE = "timetable"
"""The name of links that were given as a table in Python."""

Loss = LossName | None
Share = Annotated[float, Gt(0), Lt(1)] | None
Statistics = Literal["average", "client", "refuse"]
NotNegative = Annotated[float, Ge(0)]


# ------------------------------------------------------------------------- functions as signatures


def _classification(
    *, validation: Share = None, loss: Loss = None, running_statistics: Statistics = "average"
) -> None: ...


def _app(
    *,
    app: Annotated[
        CodeFile, Help("Your model and data: a Python file with model() and data(client)")
    ],
    validation: Share = None,
    loss: Loss = None,
    running_statistics: Statistics = "average",
) -> None: ...


def _quadratic(*, targets: InputFile) -> None: ...


def _python(*, fingerprint: str = "") -> None: ...


def _timetable(*, fingerprint: str = "") -> None: ...


def _mean(*, clip: NotNegative = 0.0) -> None: ...


def _trimmed_mean(
    *, trim: Annotated[float, Gt(0), Lt(0.5)] = 0.2, clip: NotNegative = 0.0
) -> None: ...


def _sgd(
    *, momentum: Annotated[float, Ge(0), Lt(1)] = 0.0, weight_decay: NotNegative = 0.0
) -> None: ...


def _adam(*, weight_decay: NotNegative = 0.0) -> None: ...


def _adamw(*, weight_decay: NotNegative = 0.01) -> None: ...


def _without_options() -> None: ...


def _horizon(*, rounds: Annotated[int, Ge(1)] = 100) -> None: ...


def _pool(*, workers: Annotated[int, Ge(0), Le(MAX_WORKERS)] = 0) -> None: ...


def _ray(*, workers: Annotated[int, Ge(0), Le(MAX_WORKERS)] = 0, address: str = "") -> None: ...


def _data(
    *,
    dir: Annotated[
        Folder | None, Help("Folder of the data set's Parquet files", flag="data_dir")
    ] = None,
    alpha: Annotated[
        float, Gt(0), Help("α of the Dirichlet partition; small is heterogeneous")
    ] = defaults.ALPHA,
    train_samples: Annotated[int, Ge(0)] = defaults.TRAIN_SAMPLES,
    weigh: Literal["volume", "clients"] = "volume",
) -> None: ...


def _fixed(section: str, default: str, **functions: Callable[..., None]) -> Registry:
    """A registry that nobody adds to."""
    return Registry(section, find_in(section, functions), options_of, lambda: functions, default)


tasks = _fixed(
    "task",
    "classification",
    classification=_classification,
    quadratic=_quadratic,
    app=_app,
    python=_python,
)
aggregations = _fixed("aggregation", "mean", mean=_mean, trimmed_mean=_trimmed_mean, median=_mean)
engines = _fixed(
    "engine",
    "auto",
    auto=_without_options,
    serial=_without_options,
    stacked=_without_options,
    pool=_pool,
    ray=_ray,
)
SCHEDULES = {
    "inverse_sqrt": _without_options,
    "constant": _without_options,
    **dict.fromkeys(HORIZONS, _horizon),
}


def _find_schedule(name: str) -> Any:
    return (
        _without_options if name.startswith(PYTHON) else find_in("train.schedule", SCHEDULES)(name)
    )


schedules = Registry(
    "train.schedule", _find_schedule, options_of, lambda: SCHEDULES, "inverse_sqrt"
)
SHARED: Mapping[str, tuple[Callable[..., None], ...]] = {
    "data": (_data,),
    "task": (_classification, _quadratic, _app),
    "aggregation": (_trimmed_mean,),
}
"""Whose options are known without a name."""


# ----------------------------------------------------------------------- those that plugins add to


def _find_algorithm(name: str) -> Any:
    from fedpbc.algorithms import find_algorithm

    return find_algorithm(name)


def _algorithm_names() -> Iterable[str]:
    from fedpbc.algorithms import ALGORITHMS

    return ALGORITHMS


algorithms = Registry(
    "algorithm",
    _find_algorithm,
    lambda kind: options_of(kind.__init__),
    _algorithm_names,
    "fedpbc",
)

PROBABILITIES = ("p", "sigma", "delta")
WITHOUT_PROBABILITIES = ("always", "by_volume", "label_cyclic", "table", "trace", TIMETABLE)
"""Schemes that use no probabilities; of a plugin's scheme it shows when its links are drawn."""
NEED = {"mean_away": "away", "late_rounds": "late"}
"""Options of the scheme 'group' that say more about another one, which is 0 by default."""


def _where_given(options: Mapping[str, Option], names: Iterable[str]) -> dict[str, Option]:
    """Options without defaults: of a plugin only shows later whether it reads them."""
    return {k: replace(o, default=None) if k in names else o for k, o in options.items()}


def _links(section: str, default: str) -> Registry:
    def find(name: str) -> Any:
        from fedpbc.links import find_scheme

        return _timetable if name == TIMETABLE else find_scheme(name, section).rows

    def options(rows: Any) -> dict[str, Option]:
        from fedpbc.links.probabilities import ProbabilityOptions

        shared = options_of(ProbabilityOptions)
        if not rows.__module__.startswith("fedpbc."):
            shared = _where_given(shared, PROBABILITIES)
        return {**shared, **options_of(rows)}

    def names() -> Iterable[str]:
        from fedpbc.links import SCHEMES

        return SCHEMES

    def not_read(name: str, given: Mapping[str, Any]) -> dict[str, str]:
        remedy = f"{section} '{name}' does not use it: choose a scheme with --{section} bernoulli"
        if name in WITHOUT_PROBABILITIES:
            return dict.fromkeys(PROBABILITIES, remedy)
        reasons = {}
        if given.get("p") is not None:
            reason = f"it is only for drawing {section}.p, which is given: leave one of them out"
            reasons = {"sigma": reason, "delta": reason}
        if name == "group":
            for option, other in NEED.items():
                if not given.get(other):
                    remedy = f"leave it out, or set {section}.{other}, too"
                    reasons[option] = f"{section}.{other} is 0: {remedy}"
        return reasons

    def follows(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        if name != "trace":
            return {}
        from fedpbc.links.trace import round_length

        # Written down: what a run was does not depend on what a log says later.
        return {"round_seconds": round_length(values, section)}

    return Registry(section, find, options, names, default, not_read, follows)


uplinks = _links("links", "bernoulli_varying")
downlinks = _links("downlink", "always")


def _find_source(name: str) -> Any:
    from fedpbc.data import find_source

    return find_source(name)


def _source_names() -> Iterable[str]:
    from fedpbc.data import SOURCES

    return SOURCES


def _shared_data(source: Any) -> dict[str, Option]:
    shared = options_of(_data)
    return shared if source.is_ours else _where_given(shared, ("alpha", "weigh"))


def _not_of_the_data(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    source = _find_source(name)
    if source.has_clients(given):
        return {"alpha": f"should be left out: {name} has clients of its own"}
    if source.is_ours:
        return {"weigh": f"should be left out: the samples of {name} are no client's"}
    return {}  # Of a plugin's data it shows when it is loaded.


data_sets = Registry(
    "data",
    _find_source,
    lambda source: {**_shared_data(source), **source.options},
    _source_names,
    "fashion",
    _not_of_the_data,
)


def _find_model(name: str) -> Any:
    from fedpbc.tasks.networks import find_model

    return find_model(name)


def _model_options(function: Any) -> Mapping[str, Option]:
    from fedpbc.tasks.model_registry import model_options

    return model_options(function)


def _model_names() -> Iterable[str]:
    from fedpbc.tasks.networks import MODELS

    return MODELS


models = Registry("model", _find_model, _model_options, _model_names, "mlp")

OPTIMIZERS = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}


def _find_optimizer(name: str) -> Any:
    if name in OPTIMIZERS or name.startswith(PYTHON):
        return OPTIMIZERS.get(name, _without_options)
    if name == "momentum":
        raise InputError("train.optimizer", name, "sgd with momentum: sgd:momentum=0.9")
    from fedpbc.tasks.local_training import find_optimizer

    return find_optimizer(name)


@lru_cache(maxsize=64)
def _optimizer_options(kind: Any) -> Mapping[str, Option]:
    if not isinstance(kind, type):
        return options_of(kind)
    # Without defaults, which may differ between versions of PyTorch: only what is given counts.
    parameters = list(inspect.signature(kind).parameters)[1:]
    return {name: Option(name, Any, None) for name in parameters if name != "lr"}


optimizers = Registry(
    "train.optimizer", _find_optimizer, _optimizer_options, lambda: OPTIMIZERS, "sgd"
)
