"""Step sizes: the default ones, or what «tune» chose for each data set and algorithm."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError, Verbatim
from fedpbc.paper.experiment import ExperimentRequest, default_folder
from fedpbc.paper.plan import PlannedRun

__all__ = ["CHOSEN", "StepSizes", "find_step_sizes"]

CHOSEN = "chosen.toml"
DEFAULT = "the default step sizes, η_0 = 0.05 and η_g = 1"


@dataclass(frozen=True)
class StepSizes:
    """η_0 and η_g for data sets and algorithms.

    Attributes:
        origin: for people: where they come from.
        chosen: options of the section «train», by data set and algorithm.
    """

    origin: str
    chosen: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)

    def note(self, runs: Sequence[PlannedRun]) -> str:
        """One line for people, which names those that nothing was chosen for."""
        used = list(dict.fromkeys((run.group.data, run.algorithm) for run in runs))
        missing = [f"{name} on {data}" for data, name in used if (data, name) not in self.chosen]
        default = f"; the default ones for {', '.join(missing)}" if self.chosen and missing else ""
        return f"Trained with {self.origin}{default}."


def find_step_sizes(wanted: ExperimentRequest) -> StepSizes:
    """What the tables use: the file that is named, or the one that «tune» left beside them.

    Example:
        >>> find_step_sizes(ExperimentRequest(out=Path("nowhere/table1"))).origin
        'the default step sizes, η_0 = 0.05 and η_g = 1 (there is no nowhere/tune/chosen.toml)'
    """
    by_hand = wanted.settings.get("train", {})
    hand = [key for key in ("learning_rate", "global_learning_rate") if key in by_hand]
    also = "".join(f", but train.{key} = {by_hand[key]} as set by hand" for key in hand)
    if wanted.tuned == "no":
        return StepSizes(f"{DEFAULT}{also}")
    beside = wanted.out.parent / default_folder("tune", wanted.quick).name / CHOSEN
    place = beside if wanted.tuned is None else Path(wanted.tuned).expanduser()
    if wanted.tuned is None and not place.is_file():
        return StepSizes(f"{DEFAULT} (there is no {place.as_posix()}){also}")
    chosen, judged = read_chosen(place)
    return StepSizes(
        f"the step sizes that 'tune' chose after {judged} rounds ({place}){also}", chosen
    )


def read_chosen(place: Path) -> tuple[dict[tuple[str, str], dict[str, float]], int]:
    """What «tune» chose, and after how many rounds."""
    try:
        found: dict[str, Any] = tomllib.loads(place.read_text(encoding="utf-8"))
        chosen = {
            (data, algorithm): {
                key: float(options[key]) for key in ("learning_rate", "global_learning_rate")
            }
            for data, algorithms in found["chosen"].items()
            for algorithm, options in algorithms.items()
        }
        return chosen, int(found["rounds"])
    except FileNotFoundError:
        raise InputError("tuned", str(place), "a file that 'fedpbc paper tune' wrote") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        right = f"a file that 'fedpbc paper tune' wrote ({reason})"
        raise InputError("tuned", Verbatim(str(place)), right) from None
