"""What a search has found: each candidate's score, and which is the best."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedpbc.experiments.comparison_row import window_of
from fedpbc.experiments.spread import mean_of
from fedpbc.experiments.tuning.plan import TuningPlan
from fedpbc.experiments.tuning.search_space import LEARNING_RATE, Settings
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["Score", "TrialResult", "TunedEntry", "TuningResult", "score_of"]

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Score:
    """The best deployable view of a candidate on the held-out samples, after some rounds.

    Attributes:
        value: the accuracy, or minus the loss where there are no classes; the mean over seeds of
            the mean over the evaluations in the last fifth of the rounds, 100 at most.
        deviation: over seeds; None for one.
    """

    value: float
    view: str
    rounds: int
    deviation: float | None = None


def score_of(runs: Sequence[Lines], rounds: int) -> Score:
    """The score of a candidate's runs, one per seed, after so many rounds.

    Example:
        >>> line = {"round": 10, "views": {"server": {"test_accuracy": 0.5, "test_loss": 1.0}}}
        >>> score_of([[line]], 10).value
        0.5
    """
    window = window_of(rounds)
    best: Score | None = None
    views = [view for view in DEPLOYABLE if view in runs[0][0]["views"]]
    for view in views:
        values = []
        for lines in runs:
            evaluations = [
                line["views"][view] for line in lines if rounds - window < line["round"] <= rounds
            ]
            values.append(mean_of([_value(evaluation) for evaluation in evaluations]))
        deviation = statistics.stdev(values) if len(values) > 1 else None
        score = Score(mean_of(values), view, rounds, deviation)
        if best is None or score.value > best.value:
            best = score
    assert best is not None
    return best


def _value(evaluation: Mapping[str, Any]) -> float:
    accuracy = evaluation.get("test_accuracy")
    return -float(evaluation["test_loss"]) if accuracy is None else float(accuracy)


@dataclass(frozen=True)
class TrialResult:
    """A candidate's settings, its last score (None if it diverged), and its rounds."""

    settings: Settings
    score: Score | None
    rounds: int


@dataclass(frozen=True)
class TunedEntry:
    """All candidates of an entry; the first has the default settings.

    Attributes:
        label: of the entry; by default the algorithm's name.
    """

    algorithm: str
    trials: Sequence[TrialResult]
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.algorithm)

    @property
    def best(self) -> TrialResult | None:
        """The best of those that ran longest; the first of equal ones; None if all diverged."""
        scored = [trial for trial in self.trials if trial.score is not None]
        longest = max((trial.rounds for trial in scored), default=0)
        finalists = [trial for trial in scored if trial.rounds == longest]
        return max(
            finalists, key=lambda trial: trial.score.value if trial.score else 0.0, default=None
        )

    @property
    def all_equal(self) -> bool:
        """Whether several candidates were scored, and no score tells any of them apart."""
        values = [trial.score.value for trial in self.trials if trial.score is not None]
        return len(values) > 1 and len(set(values)) == 1

    @property
    def diverged(self) -> int:
        """How many candidates diverged."""
        return sum(trial.score is None for trial in self.trials)

    def at_edge(self) -> str | None:
        """``smallest`` or ``largest`` if no step size beyond the chosen η_0 was tried."""
        rates = {
            float(t.settings[LEARNING_RATE]) for t in self.trials if LEARNING_RATE in t.settings
        }
        if self.best is None or len(rates) < 2:
            return None
        chosen = float(self.best.settings[LEARNING_RATE])
        if chosen == min(rates):
            return "smallest"
        # If a larger one diverged, it was tried, and nothing beyond it is better.
        return "largest" if chosen == max(rates) else None


@dataclass(frozen=True)
class TuningResult:
    """The result of a search."""

    plan: TuningPlan
    entries: Sequence[TunedEntry]
    has_classes: bool

    @property
    def rounds_run(self) -> int:
        """The rounds of all runs together."""
        trials = [trial for tuned in self.entries for trial in tuned.trials]
        return len(self.plan.seeds) * sum(trial.rounds for trial in trials)

    def as_dict(self) -> dict[str, Any]:
        """The content of ``tuning.json``."""
        return {
            "rounds": self.plan.rounds,
            "seeds": list(self.plan.seeds),
            "validation": self.plan.validation,
            "score": "accuracy" if self.has_classes else "minus the loss",
            "rounds_run": self.rounds_run,
            "algorithms": {
                tuned.label: {
                    "chosen": None if tuned.best is None else asdict(tuned.best),
                    "default": asdict(tuned.trials[0]),
                    "diverged": tuned.diverged,
                    "candidates": [asdict(trial) for trial in tuned.trials],
                }
                for tuned in self.entries
            },
        }
