"""Comparisons whose every seed has a value that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_result import RunResult


def run(
    name: str,
    seed: int,
    value: float,
    *,
    view: str = "server",
    views: Mapping[str, float] | None = None,
    steps: int = 100,
    sent: int | None = 1000,
    server: int | None = 1,
    client: int | None = 0,
    classes: bool = True,
) -> RunResult:
    """Return a run with a value, an accuracy or a loss, in one view or in several."""

    def evaluation(value: float) -> dict[str, Any]:
        accuracy = value if classes else None
        loss = 1 - value if classes else value
        return {"test_accuracy": accuracy, "train_accuracy": accuracy, "test_loss": loss}

    values = {view: value} if views is None else dict(views)
    counted = {} if sent is None else {"bytes_up": sent, "bytes_down": sent}
    line = {"round": 10, "local_steps": steps, "uploads": 20, "seconds": 1.0, **counted}
    line["views"] = {view: evaluation(value) for view, value in values.items()}
    cost = {
        "models_on_server": dict.fromkeys(values, server),
        "models_on_client": client,
        "memory_aided": name == "mifa",
    }
    return RunResult(name, seed, 10, [line], cost=cost)


def failed(name: str, seed: int) -> RunResult:
    """Return a run that diverged."""
    return RunResult(name, seed, failure="the run diverged")


def scored(
    values: Mapping[str, Mapping[int, float]], costs: Mapping[str, Any] | None = None, **more: Any
) -> Comparison:
    """Return a comparison from values by name and seed; ``costs`` are options of :func:`run`."""
    return Comparison(
        run(name, seed, value, **{**more, **(costs or {}).get(name, {})})
        for name, by_seed in values.items()
        for seed, value in by_seed.items()
    )


def seeds(*values: float) -> dict[int, float]:
    """Return values by seed, from seed 0."""
    return dict(enumerate(values))
