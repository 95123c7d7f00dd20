"""A client rule is run once without data: how many values each vector of its uploads has."""

from __future__ import annotations

from collections.abc import Mapping

from fedpbc.algorithms.client import ClientRule, ClientWork, Vector

__all__ = ["trial_sizes"]


def trial_sizes(rule: ClientRule, x0: Vector, received: Mapping[str, Vector]) -> dict[str, int]:
    """The sizes of what a rule uploads, from running it once without data."""
    try:
        work = ClientWork(
            client=0,
            start=x0,
            received=received,
            state=rule.initial_state(x0),
            first_round=0,
            rates=(1.0,),
            local_steps=1,
            loss=lambda model: 0.0,
        )
        if rule.has_own_steps:
            result = rule.local_steps(work, lambda model, k: x0 * 0)
        else:
            result = rule.finish(work, x0)
        return {name: len(vector) for name, vector in result.upload.items() if vector.dim() == 1}
    except Exception:  # A plugin's rule may do anything.
        return {}
