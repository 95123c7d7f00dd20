"""The experiments by name, their common request and their common result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpbc.errors import InputError
from fedpbc.text import shell_quoted

if TYPE_CHECKING:
    from fedpbc.experiments.sweep import GridProgress

__all__ = [
    "EXPERIMENTS",
    "ExperimentRequest",
    "ExperimentResult",
    "OnProgress",
    "ProgressDisplay",
    "ProgressRow",
    "default_folder",
    "make",
]

EXPERIMENTS = {
    "fig2": "what FedAvg converges to when one of two links gets better: formula and simulation",
    "fig3": "quadratics: how far the server's model stays from the optimum",
    "fig5": "the classes' rates r and the histogram of p_i",
    "fig6": "when each uplink is up: every link scheme, four probabilities",
    "table1": "accuracy of seven algorithms over six link schemes on three data sets",
    "table2": "the first round in which each algorithm reaches an accuracy",
    "ablation": "accuracy against α, γ, δ and σ₀, one at a time",
    "tune": "the paper's grid search over η_0 and η_g; the tables use what it chooses",
}
"""Each is a module of the same name in this package."""

NARROWING = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")
"""Fields of a request that only some experiments accept; a module lists its own in OPTIONS."""


class ProgressRow(NamedTuple):
    """One run as a progress display shows it."""

    label: str
    rounds: int
    weight: int = 1  # Cost of a round relative to other runs.
    done: int = 0  # Rounds that an earlier process completed.


OnProgress = Callable[["GridProgress"], None]
ProgressDisplay = Callable[[Sequence[ProgressRow], Path], AbstractContextManager[OnProgress]]
"""Opens a display, given the runs and the experiment's folder; yields its update function."""


@dataclass(frozen=True, kw_only=True)
class ExperimentRequest:
    """Options of an experiment; None means as in the paper.

    Attributes:
        out: the folder for all output.
        quick: use the embedded data, with fewer rounds and seeds.
        data: names of data sets.
        data_dir: where their Parquet files are: one folder, or one in it for each data set.
        algorithms: names.
        links: names of link schemes.
        seeds: one repetition for each.
        rounds: T.
        jobs: runs in parallel.
        settings: further options of every run, such as plugins, engine or device.
        overwrite: remove earlier runs in ``out`` first.
        tuned: a file of step sizes written by ``tune``, or ``"no"``; searched for if None.
        display: opens a progress display; None: nothing is shown.
        width: characters of a line of text; None: as many as the tables need.

    Example:
        >>> ExperimentRequest(out=Path("paper/fig2")).quick
        False
    """

    out: Path
    quick: bool = False
    data: Sequence[str] | None = None
    data_dir: Path | None = None
    algorithms: Sequence[str] | None = None
    links: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    rounds: int | None = None
    jobs: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    overwrite: bool = False
    tuned: str | None = None
    display: ProgressDisplay | None = None
    width: int | None = None

    def command(self, name: str) -> str:
        """The command line that repeats the experiment."""
        from fedpbc.report.groups import flatten

        words = ["fedpbc", "paper", name, *(["--quick"] if self.quick else [])]
        for option in ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "tuned"):
            value = getattr(self, option)
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                words += [f"--{option.replace('_', '-')}", text]
        settings = dict(self.settings)
        for plugin in settings.pop("plugins", None) or ():
            words += ["--plugin", str(plugin)]
        for key, value in flatten(settings).items():
            # --set takes TOML values, and strings without quotes.
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        if self.out != default_folder(name, self.quick):
            words += ["--out", str(self.out)]
        return " ".join(map(shell_quoted, words))


def default_folder(name: str, quick: bool) -> Path:
    """The output folder of an experiment unless another is given."""
    return Path("paper") / (f"{name}-quick" if quick else name)


@dataclass(frozen=True)
class ExperimentResult:
    """The output of an experiment.

    Attributes:
        text: a readable table with notes.
        numbers: the same as JSON values.
        written: the files written, the most interesting first.
        failed: one line for each run that failed.
        next: a suggestion for what to do next.

    Example:
        >>> ExperimentResult("0.5", {"p": 0.5}, [Path("fig2.png")]).failed
        ()
    """

    text: str
    numbers: dict[str, Any]
    written: Sequence[Path]
    failed: Sequence[str] = ()
    next: str = ""


def make(name: str, request: ExperimentRequest) -> ExperimentResult:
    """Make one of the paper's figures or tables.

    Example:
        >>> make("fig7", ExperimentRequest(out=Path("nowhere")))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        fedpbc.errors.InputError: experiment is 'fig7', but should be one of fig2, fig3, ...
    """
    from fedpbc.experiments.plugins import load_plugins
    from fedpbc.options import nearest

    if name not in EXPERIMENTS:
        raise InputError("experiment", name, nearest(name, EXPERIMENTS))
    module = import_module(f"fedpbc.paper.{name}")
    for option in NARROWING:
        if getattr(request, option) is not None and option not in module.OPTIONS:
            raise InputError(f"{name} has no option --{option.replace('_', '-')}: leave it out")
    load_plugins(request.settings)
    result: ExperimentResult = module.run(request)
    return result
