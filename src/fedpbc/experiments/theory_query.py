"""What ``fedpbc theory`` analyzes: probabilities, a timetable, or the links of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedpbc import defaults
from fedpbc.errors import InputError
from fedpbc.experiments.overrides import configuration_values, set_value, split_list
from fedpbc.experiments.settings import General
from fedpbc.limits import MAX_CLIENTS, MAX_LOCAL_STEPS, MAX_ROUNDS
from fedpbc.links import Timetable, find_scheme, from_table
from fedpbc.links.trace import trace_notes
from fedpbc.options import check_type
from fedpbc.storage.arrays import read_array
from fedpbc.storage.toml import parsed_toml
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.theory.arguments import array_of, probabilities
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.independent_links import IndependentLinks
from fedpbc.theory.mixing import EXACT_CLIENTS
from fedpbc.theory.summary import Constants, TheorySummary

__all__ = ["TheoryQuery", "analyze"]

Floats = NDArray[np.float64]

DEFAULT_CONSTANTS: dict[str, Any] = {
    "step_size": LocalTraining.learning_rate,
    "local_steps": LocalTraining.local_steps,
    "rounds": General.rounds,
    "lipschitz": 1.0,
    "sigma": 1.0,
    "zeta": 1.0,
    "beta": 0.0,
    "gap": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class TheoryQuery:
    """What to analyze.

    Attributes:
        source: a configuration, or a run's directory.
        p: probabilities: numbers with commas, or a file.
        table: a file with a timetable.
        targets: a file with the targets of quadratics.
        assignments: ``KEY=VALUE`` texts for the configuration.
        options: values for the configuration, by key.
        constants: Theorem 1's constants, by name; those that are None are assumed.
        trust: allow a directory's plugins that this user has not run on this machine.
    """

    source: Path | None = None
    p: str | None = None
    table: Path | None = None
    targets: Path | None = None
    clients: int | None = None
    seed: int | None = None
    assignments: Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    trust: bool = False


def analyze(query: TheoryQuery) -> TheorySummary:
    """Everything that the theory says of the links in question."""
    for option, value, largest in (
        ("--clients", query.clients, MAX_CLIENTS),
        ("--rounds", query.constants.get("rounds"), MAX_ROUNDS),
        ("--local-steps", query.constants.get("local_steps"), MAX_LOCAL_STEPS),
    ):
        if value is not None:
            check_type(option, value, Annotated[int, Ge(1), Le(largest)])
    targets = None
    if query.targets is not None:
        targets = array_of("--targets", read_array(str(query.targets), "--targets"))
        targets = targets.astype(np.float64)
    p = None if query.p is None else parse_probabilities(query.p)
    of_a_run = query.source is not None or bool(query.assignments) or bool(query.options)
    if query.table is not None:
        if p is not None or of_a_run or query.seed is not None:
            raise InputError(
                f"--table {query.table} stands alone: leave out --p, the configuration and the "
                "options of a run"
            )
        return analyze_table(query, targets)
    if p is not None and not of_a_run:
        if query.seed is not None:
            raise InputError("--seed", query.seed, "left out: --p alone draws nothing")
        return analyze_probabilities(query, targets, p)
    return analyze_run(query, targets, p)


def parse_probabilities(text: str) -> Floats | str:
    """Numbers with commas, or the name of a file of them."""
    if Path(text).suffix in {".npy", ".csv"}:
        return text
    numbers = split_list("--p", text, float)
    if not numbers:
        raise InputError("--p", text, "a number, numbers separated by commas, or a file")
    return probabilities(numbers)


def analyze_probabilities(
    query: TheoryQuery, targets: Floats | None, p: Floats | str
) -> TheorySummary:
    """Independent links, up with the same probability in every round."""
    per_client = probabilities(read_array(p, "--p").ravel()) if isinstance(p, str) else p
    if len(per_client) == 1:
        default = len(targets) if targets is not None and targets.ndim else defaults.CLIENTS
        clients = default if query.clients is None else query.clients
        if clients < 1:
            raise InputError("--targets has no rows, but should have one for each client")
        per_client = np.repeat(per_client, clients)
    elif query.clients not in (None, len(per_client)):
        expected = f"left out, or {len(per_client)} as --p has numbers"
        raise InputError("--clients", query.clients, expected)
    constants = constants_of(query, targets)
    links = IndependentLinks.from_probabilities(repeat(per_client, constants.rounds))
    name = "independent, with p as given"
    return TheorySummary(name, len(per_client), links, None, constants, targets)


def analyze_table(query: TheoryQuery, targets: Floats | None) -> TheorySummary:
    """A timetable from a file."""
    rows = read_array(str(query.table), "--table")
    if rows.ndim != 2 or 0 in rows.shape:
        raise InputError(
            f"--table has an array of shape {rows.shape}, but should have rounds x clients, at "
            "least one of each"
        )
    if not np.isin(rows, (0, 1)).all():
        raise InputError("--table has other values than 0 and 1")
    if query.clients not in (None, rows.shape[1]):
        expected = f"left out, or {rows.shape[1]} as the table has columns"
        raise InputError("--clients", query.clients, expected)
    rounds = query.constants.get("rounds")
    if rounds is not None and not 1 <= rounds <= len(rows):
        raise InputError("--rounds", rounds, f"from 1 to {len(rows)}, as the table has rows")
    constants = constants_of(query, targets, {"rounds": len(rows)})
    return of_timetable(f"the table {query.table}", from_table(rows[:rounds]), constants, targets)


def analyze_run(
    query: TheoryQuery, targets: Floats | None, p: Floats | str | None
) -> TheorySummary:
    """The links that a configuration draws."""
    from fedpbc.experiments.build import build_task
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.unused_settings import check_probabilities_are_read
    from fedpbc.simulation.build import draw_timetable
    from fedpbc.tasks import Quadratic

    options = {
        **query.options,
        "rounds": query.constants.get("rounds"),
        "train.local_steps": query.constants.get("local_steps"),
        "train.learning_rate": query.constants.get("step_size"),
        "clients": query.clients,
        "seed": query.seed,
    }
    file = config_file(query.source)
    # A run of an earlier version may hold settings without effect.
    of_folder = file != query.source
    values = configuration_values(
        file, options, query.assignments, of_folder=of_folder, trust=query.trust
    )
    if isinstance(p, str):
        set_value(values, "links.p", p)
    elif p is not None:
        set_value(values, "links.p", p.tolist() if len(p) > 1 else float(p[0]))
        if len(p) > 1:
            values.setdefault("clients", len(p))
    config = Config.from_dict(values, lenient=of_folder)
    check_options_are_read(query, config)
    if config.task.name == "quadratic" and targets is None:
        targets = read_array(str(config.task.targets), "task.targets").astype(np.float64)
    if reads_data(config):
        task = build_task(config)
    else:
        # Only the number of clients matters: no need to read any data.
        default = defaults.CLIENTS if targets is None else len(targets)
        task = Quadratic(np.zeros((config.general.clients or default, 1)))
    rounds, seed = config.general.rounds, config.general.seed
    timetable = draw_timetable(config.links, task, rounds, seed)
    if p is not None or not of_folder:
        check_probabilities_are_read(replace(config, lenient=False), "links", timetable)
    constants = constants_of(
        query,
        targets,
        {
            "rounds": rounds,
            "local_steps": config.train.local_steps,
            "step_size": config.train.learning_rate,
        },
    )
    name = f"{config.links['name']}, seed {seed}"
    notes = limitations(config)
    if config.links["name"] == "trace":
        notes += tuple(trace_notes(config.links, rounds))
    return of_timetable(name, timetable, constants, targets, notes)


READ = ("rounds", "seed", "clients", "plugins", "task", "links", "train", "downlink")
"""Settings of a run that the theory reads: sections and single ones."""
READ_WITH_DATA = ("data.name", "data.dir", "data.alpha", "device")
"""Those that it reads if p is drawn from the data, or the links depend on it."""


def check_options_are_read(query: TheoryQuery, config: Any) -> None:
    """Raise InputError for an option that the theory does not read.

    A configuration file describes a whole run; what else it says does no harm.
    """
    read: tuple[str, ...] = READ
    if reads_data(config):
        read = (*READ, *READ_WITH_DATA, *(f"data.{name}" for name in config.data_options))
    assignments = dict(text.partition("=")[::2] for text in query.assignments or ())
    given = {**query.options, **{key.strip(): text for key, text in assignments.items()}}
    for key, value in given.items():
        # "data" is short for "data.name".
        if not {key, f"{key}.name", key.partition(".")[0]} & set(read):
            raise InputError(f"{key} is {value!r}, but 'theory' does not use it: leave it out")


def reads_data(config: Any) -> bool:
    """Whether the links depend on what the clients hold: through p, or by the scheme's rule."""
    draws_p = config.links.get("p") is None
    needs_data = find_scheme(config.links["name"]).needs_data(config.links)
    return config.task.name in ("classification", "app") and (draws_p or needs_data)


def config_file(source: Path | None) -> Path | None:
    """The configuration itself, or that of a run's directory."""
    if source is None or not source.is_dir():
        return source
    from fedpbc.experiments.configuration import is_python_task
    from fedpbc.experiments.run_directory import RunDirectory

    run = RunDirectory(source)
    if not run.holds_run:
        expected = "a configuration, or a run's folder (there is no config.toml)"
        raise InputError("configuration", str(source), expected)
    if is_python_task(parsed_toml(run.config_path, follow_links=False)):
        raise InputError(
            f"{source} is a run that was started from Python: give its links with --p or --table"
        )
    return run.config_path


def limitations(config: Any) -> tuple[str, ...]:
    """What the theory leaves out of a configuration, one line each."""
    notes = {
        "the learning rate decays: the theory has a constant one, and η_0 is taken": (
            config.train.decay
        ),
        "the theory has plain SGD and η_g = 1": (
            not config.train.is_plain or config.train.global_learning_rate != 1
        ),
        "the theory has downlinks that are always up": config.downlink["name"] != "always",
    }
    return tuple(note for note, applies in notes.items() if applies)


def of_timetable(
    name: str,
    timetable: Timetable,
    constants: Constants,
    targets: Floats | None,
    notes: tuple[str, ...] = (),
) -> TheorySummary:
    """What is expected, where links are independent, and what was drawn."""
    expectation = None
    if timetable.independent:
        expectation = IndependentLinks.from_probabilities(timetable.probabilities())
    exact = timetable.clients <= EXACT_CLIENTS
    empirical = EmpiricalLinks.from_rows(map(timetable.up, range(timetable.rounds)), mixing=exact)
    return TheorySummary(name, timetable.clients, expectation, empirical, constants, targets, notes)


def constants_of(
    query: TheoryQuery, targets: Floats | None, of_run: Mapping[str, Any] | None = None
) -> Constants:
    """Theorem 1's constants: given, of quadratics, of the run, or assumed."""
    values = dict(of_run or {})
    if targets is not None and targets.ndim and len(targets):
        values |= {"lipschitz": 1.0, "sigma": 0.0, "beta": 0.0}
        with np.errstate(over="ignore", invalid="ignore"):
            centre = targets.mean(axis=0)
            values["zeta"] = float(np.sqrt(np.square(targets - centre).sum() / len(targets)))
            values["gap"] = float(np.square(centre).sum() / 2)
        if not math.isfinite(values["zeta"] + values["gap"]):
            raise InputError("--targets has numbers whose squares are too large for a number")
    values |= {name: value for name, value in query.constants.items() if value is not None}
    assumed = tuple(name for name in DEFAULT_CONSTANTS if name not in values)
    return Constants(**{**DEFAULT_CONSTANTS, **values}, assumed=assumed)
