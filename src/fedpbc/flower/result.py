"""What a strategy returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

__all__ = ["ViewsResult"]


@dataclass
class ViewsResult(Result):  # type: ignore[misc]
    """Flower's result, with the model of each view that a server can deploy.

    ``arrays`` is the view that the strategy was asked for.

    Example:
        >>> sorted(vars(ViewsResult()))[-1]
        'views'
    """

    views: dict[str, ArrayRecord] = field(default_factory=dict)

    @classmethod
    def of(
        cls, result: Result, done: int, arrays: ArrayRecord, views: dict[str, ArrayRecord]
    ) -> ViewsResult:
        """From Flower's result of what was left of a job after ``done`` rounds."""
        metrics = (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        )
        by_round = ({t + done: each for t, each in records.items()} for records in metrics)
        return cls(arrays, *by_round, views=views)
