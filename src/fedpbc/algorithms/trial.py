"""A client rule is run once without data: how many values each vector of its uploads has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedpbc.algorithms.client import ClientRule, ClientWork, Vector
from fedpbc.errors import InputError

__all__ = ["check_step_sum", "trial_sizes"]


def check_step_sum(
    rule: ClientRule,
    x0: Vector,
    received: Mapping[str, Vector],
    step_sum: Callable[[Sequence[float]], float],
) -> None:
    """Raise the InputError that ``step_sum`` raises, if the rule asks for it."""
    problems: list[InputError] = []

    def noted(rates: Sequence[float]) -> float:
        try:
            return step_sum(rates)
        except InputError as problem:
            problems.append(problem)
            raise

    trial_sizes(rule, x0, received, noted)
    if problems:
        raise problems[0]


def trial_sizes(
    rule: ClientRule,
    x0: Vector,
    received: Mapping[str, Vector],
    step_sum: Callable[[Sequence[float]], float] | None = None,
) -> dict[str, int]:
    """The sizes of what a rule uploads, from running it once without data."""
    try:
        work = ClientWork(
            client=0,
            start=x0,
            received=received,
            state=rule.initial_state(x0.clone()),
            first_round=0,
            rates=(1.0,),
            local_steps=1,
            loss=lambda model: 0.0,
            step_sum_of=step_sum,
        )
        if rule.has_own_steps:
            result = rule.local_steps(work, lambda model, k: x0 * 0)
        else:
            result = rule.finish(work, x0.clone())
        return {name: len(vector) for name, vector in result.upload.items() if vector.dim() == 1}
    except Exception:  # A plugin's rule may do anything.
        return {}
