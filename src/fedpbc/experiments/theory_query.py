"""What ``fedpbc theory`` was asked about: probabilities, a timetable, or the links of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.overrides import gathered, put, separated
from fedpbc.links import Timetable, from_table
from fedpbc.storage.arrays import read_array
from fedpbc.theory.arguments import array_of, probabilities
from fedpbc.theory.empirical import EmpiricalLinks
from fedpbc.theory.independent_links import IndependentLinks
from fedpbc.theory.mixing import EXACT_CLIENTS
from fedpbc.theory.summary import Constants, TheorySummary

if TYPE_CHECKING:
    from fedpbc.experiments.configuration import Config

__all__ = ["TheoryQuery", "analyze"]

Floats = NDArray[np.float64]

STEP_SIZE, LOCAL_STEPS, ROUNDS, CLIENTS = 0.05, 5, 500, 100
"""As in a configuration, which takes a while to import."""


@dataclass(frozen=True, kw_only=True)
class TheoryQuery:
    """What was given on the command line; what is None was not.

    Example:
        >>> analyze(TheoryQuery(p="0.5,0.25", constants={"rounds": 10})).clients
        2
    """

    source: Path | None = None
    p: str | None = None
    table: Path | None = None
    targets: Path | None = None
    clients: int | None = None
    seed: int | None = None
    settings: list[str] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    """Options of a run: links, data and the like."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Theorem 1's."""


def analyze(asked: TheoryQuery) -> TheorySummary:
    """Everything that the theory says of the links that were asked about."""
    targets = None
    if asked.targets is not None:
        targets = array_of("--targets", read_array(str(asked.targets), "--targets"))
        targets = targets.astype(np.float64)
    p = None if asked.p is None else given_probabilities(asked.p)
    of_a_run = asked.source is not None or bool(asked.settings) or any(asked.run.values())
    if asked.table is not None:
        return analyze_table(asked, targets, p, of_a_run or asked.seed is not None)
    if p is not None and not of_a_run:
        if asked.seed is not None:
            raise InputError("--seed", asked.seed, "left out: --p alone draws nothing")
        return analyze_probabilities(asked, targets, p)
    return analyze_run(asked, targets, p)


def given_probabilities(text: str) -> Floats | str:
    """Numbers with commas, or the name of a file of them."""
    if Path(text).suffix in {".npy", ".csv"}:
        return text
    given = separated("--p", text, float)
    if not given:
        raise InputError("--p", text, "a number, numbers separated by commas, or a file")
    return probabilities(given)


def spread(p: Floats | str, clients: int | None, otherwise: int) -> Floats:
    """One number a client; a single one is for as many as were asked for, or ``otherwise``."""
    own = probabilities(read_array(p, "--p").ravel()) if isinstance(p, str) else p
    if len(own) == 1:
        return np.repeat(own, count("--clients", clients, otherwise))
    if clients not in (None, len(own)):
        right = f"left out, or {len(own)}: so many numbers --p has"
        raise InputError("--clients", clients, right)
    return own


def count(option: str, given: int | None, otherwise: int) -> int:
    """A whole number from 1 on."""
    if given is not None and given < 1:
        raise InputError(option, given, "at least 1")
    return otherwise if given is None else given


def analyze_probabilities(
    asked: TheoryQuery, targets: Floats | None, p: Floats | str
) -> TheorySummary:
    """Independent links, up with the same probability in every round."""
    own = spread(
        p, asked.clients, len(targets) if targets is not None and targets.ndim else CLIENTS
    )
    constants = constants_of(asked, targets)
    expected = IndependentLinks.from_probabilities(repeat(own, constants.rounds))
    return TheorySummary(
        "independent, with p as given", len(own), expected, None, constants, targets
    )


def analyze_table(
    asked: TheoryQuery, targets: Floats | None, p: Floats | str | None, of_a_run: bool
) -> TheorySummary:
    """A timetable from a file."""
    if p is not None or of_a_run:
        right = "alone: without --p, a configuration, or options of a run"
        raise InputError("--table", str(asked.table), right)
    rows = read_array(str(asked.table), "--table")
    if rows.ndim != 2 or 0 in rows.shape:
        given = Verbatim(f"an array of shape {rows.shape}")
        raise InputError("--table", given, "of rounds x clients, at least one of each")
    if not np.isin(rows, (0, 1)).all():
        raise InputError("--table", Verbatim("an array with other values"), "of 0 and 1")
    if asked.clients not in (None, rows.shape[1]):
        right = f"left out, or {rows.shape[1]}: so many columns the table has"
        raise InputError("--clients", asked.clients, right)
    rounds = count("--rounds", asked.constants.get("rounds"), len(rows))
    if rounds > len(rows):
        raise InputError("--rounds", rounds, f"at most {len(rows)}: so many the table has")
    constants = constants_of(asked, targets, {"rounds": len(rows)})
    return of_timetable(f"the table {asked.table}", from_table(rows[:rounds]), constants, targets)


def analyze_run(
    asked: TheoryQuery, targets: Floats | None, p: Floats | str | None
) -> TheorySummary:
    """The links that a configuration draws."""
    from fedpbc.experiments.build import build_task
    from fedpbc.experiments.configuration import Config
    from fedpbc.simulation.build import draw_timetable
    from fedpbc.tasks import Quadratic

    own = {k: asked.constants.get(k) for k in ("rounds", "local_steps")}
    own |= {"learning_rate": asked.constants.get("step_size")}
    own |= {"clients": asked.clients, "seed": asked.seed}
    given = gathered(configuration(asked.source), asked.settings, {**asked.run, **own})
    if p is not None:
        own_p = p if isinstance(p, str) else p.tolist()
        put(given, "links.p", own_p[0] if len(p) == 1 else own_p)
        if not isinstance(p, str) and len(p) > 1:
            given.setdefault("clients", len(p))
    config = Config.from_dict(given)
    if config.task.name == "quadratic" and targets is None:
        targets = read_array(str(config.task.targets), "task.targets").astype(np.float64)
    clients = config.general.clients or (CLIENTS if targets is None else len(targets))
    if config.task.name == "classification" and config.links.get("p") is None:
        task = build_task(config)
    else:
        # All that is asked of it is how many clients there are: no need to read any data.
        task = Quadratic(np.zeros((clients, 1)))
    rounds, seed = config.general.rounds, config.general.seed
    timetable = draw_timetable(config.links, task, rounds, seed)
    name = f"{config.links['name']}, seed {seed}"
    known = {
        "rounds": rounds,
        "local_steps": config.train.local_steps,
        "step_size": config.train.learning_rate,
    }
    constants = constants_of(asked, targets, known)
    return of_timetable(name, timetable, constants, targets, tuple(beyond(config)))


def configuration(source: Path | None) -> Path | None:
    """The configuration itself, or that of a run's folder."""
    if source is None or not source.is_dir():
        return source
    from fedpbc.experiments.configuration import read_toml
    from fedpbc.experiments.run_directory import RunDirectory

    folder = RunDirectory(source)
    if not folder.holds_run:
        right = "a configuration, or a run's folder (there is no config.toml)"
        raise InputError("configuration", str(source), right)
    task = read_toml(folder.config_path).get("task")
    if isinstance(task, dict) and task.get("name") == "python":
        right = "one that the command line began; for others give --p or --table"
        raise InputError("configuration", Verbatim(f"{source}, a run begun in Python"), right)
    return folder.config_path


def beyond(config: Config) -> list[str]:
    """What the theory leaves out of a configuration, a line each."""
    found = []
    if config.train.decay:
        found.append("the learning rate decays: the theory has a constant one, and η_0 is taken")
    if not config.train.is_plain or config.train.global_learning_rate != 1:
        found.append("the theory has plain SGD and η_g = 1")
    if config.downlink["name"] != "always":
        found.append("the theory has downlinks that are always up")
    return found


def of_timetable(
    name: str,
    timetable: Timetable,
    constants: Constants,
    targets: Floats | None,
    notes: tuple[str, ...] = (),
) -> TheorySummary:
    """What is expected, where links are independent, and what was drawn."""
    independent = timetable.independent
    expected = (
        IndependentLinks.from_probabilities(timetable.probabilities()) if independent else None
    )
    few = timetable.clients <= EXACT_CLIENTS
    measured = EmpiricalLinks.from_rows(map(timetable.up, range(timetable.rounds)), mixing=few)
    return TheorySummary(name, timetable.clients, expected, measured, constants, targets, notes)


def constants_of(
    asked: TheoryQuery, targets: Floats | None, known: Mapping[str, Any] | None = None
) -> Constants:
    """Theorem 1's constants: given, of quadratics, of the run, or assumed."""
    own: dict[str, Any] = {
        "step_size": STEP_SIZE,
        "local_steps": LOCAL_STEPS,
        "rounds": ROUNDS,
        "lipschitz": 1.0,
        "sigma": 1.0,
        "zeta": 1.0,
        "beta": 0.0,
        "gap": 1.0,
    }
    told = dict(known or {})
    if targets is not None and targets.ndim and len(targets):
        centre = targets.mean(axis=0)
        told |= {"lipschitz": 1.0, "sigma": 0.0, "beta": 0.0}
        told |= {"zeta": float(np.sqrt(np.square(targets - centre).sum() / len(targets)))}
        told |= {"gap": float(np.square(centre).sum() / 2)}
    told |= {name: value for name, value in asked.constants.items() if value is not None}
    return Constants(**{**own, **told}, assumed=tuple(name for name in own if name not in told))
