"""What an evaluation measures, and who may add to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from torch import Tensor

from fedpbc.errors import InputError
from fedpbc.tasks.task import Evaluation

__all__ = ["Metrics", "Observer"]


@dataclass(frozen=True)
class Metrics:
    """The result of one evaluation.

    Attributes:
        round: rounds completed.
        active: |A^t| in the round just completed.
        active_mean: its mean over all rounds so far.
        views: the evaluation of each view's model.
        staleness_mean: the mean over clients of the rounds since the last contact.
        staleness_max: the largest of them.
        consensus_error: (1/m) Σ‖x̄ − x_i‖²; None unless every client's model is at hand.
        local_steps: local steps of all clients so far.
        uploads: uploads counted so far.
        bytes_up, bytes_down: bytes of the vectors that these uploads, and the requests for them,
            carried; None in runs of earlier versions.
        seconds: time spent so far, including the time before a resume.
        observed: the values of further observers, such as ``consensus_bound``, by name.

    Example:
        >>> from fedpbc import Quadratic, simulate
        >>> result = simulate(Quadratic([[8.0], [4.0]]), "fedavg", "always", rounds=10)
        >>> result.metrics[0].active
        2
    """

    round: int
    active: int
    active_mean: float
    views: dict[str, Evaluation]
    staleness_mean: float
    staleness_max: int
    consensus_error: float | None
    local_steps: int
    uploads: int
    seconds: float
    bytes_up: int | None = None
    bytes_down: int | None = None
    observed: Mapping[str, float | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of one line of ``metrics.jsonl``."""
        views = {name: evaluation.as_dict() for name, evaluation in self.views.items()}
        line = {**vars(self), "views": views, **self.observed}
        del line["observed"]
        return line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Metrics:
        """The inverse of :meth:`as_dict`."""
        names = {f.name for f in fields(cls)}
        if not isinstance(line, Mapping) or not isinstance(line.get("views"), Mapping):
            raise InputError("a line of metrics", line, "a table with views")
        missing = names - {"observed", "bytes_up", "bytes_down"} - {*line}
        if missing:
            raise InputError(f"a line of metrics has no {', '.join(sorted(missing))}")
        values = {name: value for name, value in line.items() if name in names}
        values["views"] = {k: Evaluation.from_dict(view) for k, view in line["views"].items()}
        return cls(**values, observed={k: v for k, v in line.items() if k not in names})


class Observer(Protocol):
    """Adds one value to the metrics of every evaluation."""

    name: str
    """The key of its value."""

    def observe(self, rounds: int, models: Mapping[str, Tensor]) -> float | None:
        """Return the value after ``rounds`` rounds, given the model of each view."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
