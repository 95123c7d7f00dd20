"""The step sizes of the tables: the default ones, or those that ``tune`` chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError, one_line
from fedpbc.limits import parse_toml
from fedpbc.paper.catalog import ExperimentRequest, default_folder
from fedpbc.paper.grid import SweepResult, run_planned
from fedpbc.paper.plan import PaperCondition, PlannedRun, plan_runs
from fedpbc.paper.request import requested_seeds
from fedpbc.paper.results import links_notes, scale_note
from fedpbc.storage.files import expanded, read_regular_file

__all__ = ["CHOSEN", "STEP_SIZES", "find_step_sizes", "read_chosen", "run_conditions"]

CHOSEN = "chosen.toml"
STEP_SIZES = ("learning_rate", "global_learning_rate")
"""Options of the section ``train``: η_0 and η_g."""
MAX_BYTES = 1 << 24
DEFAULT = "the default step sizes, η_0 = 0.05 and η_g = 1"


@dataclass(frozen=True)
class StepSizes:
    """Options of the section ``train`` by data set and algorithm, and where they come from."""

    origin: str
    chosen: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    def note(self, runs: Sequence[PlannedRun]) -> str:
        """One line for the reader, which lists the runs with default step sizes."""
        used = dict.fromkeys((run.condition.data, run.algorithm) for run in runs)
        missing = [f"{name} on {data}" for data, name in used if (data, name) not in self.chosen]
        default = f"; the default ones for {', '.join(missing)}" if self.chosen and missing else ""
        return f"Trained with {self.origin}{default}."


def run_conditions(
    experiment: str,
    request: ExperimentRequest,
    conditions: Sequence[PaperCondition],
    *,
    evaluate_every: int | None = None,
    last: int | None = None,
) -> tuple[SweepResult, list[str]]:
    """Run conditions with these step sizes; returns notes on scale, step sizes and links, too.

    ``evaluate_every``: as for :func:`plan_runs`. ``last``: keep only the evaluations of this many
    last rounds.
    """
    seeds = requested_seeds(request, quick=(0, 1))
    sizes = find_step_sizes(request)
    runs = plan_runs(request, conditions, seeds, evaluate_every=evaluate_every, train=sizes.chosen)
    sweep = run_planned(experiment, request, runs, last=last)
    return sweep, [scale_note(request, runs), sizes.note(runs), *links_notes(runs)]


def find_step_sizes(request: ExperimentRequest) -> StepSizes:
    """Load the requested file, or the one that ``tune`` wrote beside the experiment's folder."""
    train = request.settings.get("train", {})
    manual = "".join(
        f", but train.{key} = {train[key]} as set by hand" for key in STEP_SIZES if key in train
    )
    if request.tuned == "no":
        return StepSizes(f"{DEFAULT}{manual}")
    if request.tuned is not None:
        path = expanded(request.tuned, "--tuned")
    else:
        path = request.out.parent / default_folder("tune", request.quick).name / CHOSEN
        if not path.is_file():
            return StepSizes(f"{DEFAULT} (there is no {path.as_posix()}){manual}")
    chosen, rounds = read_chosen(path)
    return StepSizes(
        f"the step sizes that 'tune' chose after {rounds} rounds ({path}){manual}", chosen
    )


def read_chosen(path: Path) -> tuple[dict[tuple[str, str], dict[str, float]], int]:
    """Read the step sizes that ``tune`` chose, and after how many rounds."""
    try:
        content: dict[str, Any] = parse_toml(read_regular_file(path, MAX_BYTES).decode())
        chosen = {
            (data, algorithm): {key: float(options[key]) for key in STEP_SIZES}
            for data, algorithms in content["chosen"].items()
            for algorithm, options in algorithms.items()
        }
        return chosen, int(content["rounds"])
    except FileNotFoundError:
        raise InputError("tuned", str(path), "a file that 'fedpbc paper tune' wrote") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = one_line(error)
        raise InputError(
            f"tuned is {path}, which is not a file that 'fedpbc paper tune' wrote ({reason})"
        ) from None
