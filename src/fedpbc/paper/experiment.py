"""What every experiment is told, and what it gives back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError, Verbatim

__all__ = ["EXPERIMENTS", "ExperimentRequest", "ExperimentResult", "default_folder", "make"]

EXPERIMENTS = {
    "fig2": "what FedAvg converges to when one of two links gets better: formula and simulation",
    "fig3": "quadratics: how far the server's model stays from the optimum",
    "fig5": "the classes' rates r and the histogram of p_i",
    "fig6": "who gets through when: every link scheme, four probabilities",
    "table1": "accuracy of seven algorithms over six link schemes on three data sets",
    "table2": "the first round in which each algorithm reaches an accuracy",
    "ablation": "accuracy against α, γ, δ and σ₀, one at a time",
    "tune": "the paper's grid search over η_0 and η_g; the tables use what it chooses",
}
"""Each is a module here of the same name."""

NARROWING = ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "jobs", "tuned")


@dataclass(frozen=True, kw_only=True)
class ExperimentRequest:
    """What is wanted of an experiment; what is None is as the paper has it.

    Attributes:
        out: the folder for everything that is made.
        quick: on the embedded data, with fewer rounds and seeds.
        data: names of data sets.
        data_dir: where their Parquet files are: one folder, or one for each in it.
        algorithms: names.
        links: names of link schemes.
        seeds: one repetition for each.
        rounds: T.
        jobs: runs side by side.
        settings: further options of every run, such as plugins, engine or device.
        quiet: no progress display.
        tuned: a file of step sizes that «tune» chose, or «no»; unless given it is looked for.

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
    quiet: bool = False
    tuned: str | None = None

    def command(self, name: str) -> str:
        """The command that makes the same.

        Example:
            >>> ExperimentRequest(out=Path("a b"), quick=True, seeds=[0, 1]).command("table1")
            "fedpbc paper table1 --quick --seeds 0,1 --out 'a b'"
        """
        words = ["fedpbc", "paper", name, *(["--quick"] if self.quick else [])]
        for option in ("data", "data_dir", "algorithms", "links", "seeds", "rounds", "tuned"):
            value = getattr(self, option)
            if value is not None:
                several = isinstance(value, list | tuple)
                words += [
                    f"--{option.replace('_', '-')}",
                    ",".join(map(str, value)) if several else str(value),
                ]
        settings = dict(self.settings)
        for plugin in settings.pop("plugins", None) or ():
            words += ["--plugin", str(plugin)]
        for key, value in flat(settings):
            words += ["--set", f"{key}={value_as_toml(value)}"]
        if self.out != default_folder(name, self.quick):
            words += ["--out", str(self.out)]
        return shlex.join(words)


def default_folder(name: str, quick: bool) -> Path:
    """Where an experiment goes unless told otherwise.

    Example:
        >>> default_folder("table1", quick=True).as_posix()
        'paper/table1-quick'
    """
    return Path("paper") / (f"{name}-quick" if quick else name)


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as keys with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def value_as_toml(value: Any) -> str:
    """A value as --set takes it; a word needs no quotes."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class ExperimentResult:
    """What came of an experiment.

    Attributes:
        text: for people: a table, or the figure's numbers.
        numbers: the same for machines.
        written: the files to look at, the most interesting first.
        failed: what went wrong while the rest went on, a line each.
        next: what to do next, in one line.

    Example:
        >>> ExperimentResult("0.5", {"p": 0.5}, [Path("fig2.png")]).failed
        ()
    """

    text: str
    numbers: dict[str, Any]
    written: Sequence[Path]
    failed: Sequence[str] = ()
    next: str = ""


def make(name: str, wanted: ExperimentRequest) -> ExperimentResult:
    """Make one of the paper's figures or tables.

    Example:
        >>> make("fig7", ExperimentRequest(out=Path("nowhere")))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        fedpbc.errors.InputError: experiment is 'fig7', but should be one of fig2, fig3, ...
    """
    from fedpbc.options import nearest

    if name not in EXPERIMENTS:
        raise InputError("experiment", name, nearest(name, EXPERIMENTS))
    module = import_module(f"fedpbc.paper.{name}")
    for option in NARROWING:
        if getattr(wanted, option) is not None and option not in module.OPTIONS:
            shown = option.replace("_", "-")
            raise InputError(f"--{shown}", Verbatim("given"), f"left out: {name} does not have it")
    made: ExperimentResult = module.run(wanted)
    return made
