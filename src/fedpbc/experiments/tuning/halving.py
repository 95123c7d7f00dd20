"""Successive halving: many candidates for a few rounds, the best of them for more.

Jamieson and Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization,
AISTATS 2016. All candidates of a rung are scored before any is promoted, so the choice does not
depend on the order in which runs end. A promoted run continues; it is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpbc.errors import InputError

__all__ = ["Halving", "promoted"]

REDUCTION = 3
FINALISTS = 2
"""Candidates that run for all rounds, at least: the choice is made there."""


@dataclass(frozen=True)
class Halving:
    """The rungs of a search: after how many rounds candidates are scored, and how many there are.

    Example:
        >>> halving = Halving.of(candidates=9, rounds=270)
        >>> halving.rungs, halving.sizes
        ((30, 90, 270), (9, 3, 2))
        >>> halving.cost()  # 9·30 + 3·60 + 2·180 rounds
        810
    """

    rungs: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, candidates: int, rounds: int, every: int = 1, most_rungs: int = 0) -> Halving:
        """The rungs for so many candidates; all but the last are multiples of ``every``.

        With ``most_rungs``, the choice is made at that rung, and nothing is run beyond it.
        """
        if candidates < 1:
            raise InputError("candidates", candidates, "at least 1")
        rungs, sizes = rungs_of(rounds, every), [candidates]
        rungs = rungs[: most_rungs or len(rungs)]
        for _ in rungs[1:]:
            kept = max(FINALISTS, -(-sizes[-1] // REDUCTION))
            sizes.append(min(sizes[-1], kept))
        return cls(rungs, tuple(sizes))

    def cost(self) -> int:
        """The rounds of all candidates together."""
        steps = zip(self.rungs, (0, *self.rungs), self.sizes, strict=False)
        return sum(size * (rung - before) for rung, before, size in steps)


def rungs_of(rounds: int, every: int = 1) -> tuple[int, ...]:
    """Two rungs below all rounds, a third and a ninth of them, as far as these are apart.

    Example:
        >>> rungs_of(300, every=10), rungs_of(5)
        ((30, 100, 300), (1, 5))
    """
    lower = {max(every, rounds // REDUCTION**k // every * every) for k in (1, 2)}
    return *sorted(rung for rung in lower if rung < rounds), rounds


def promoted(scores: Sequence[float | None], count: int) -> list[int]:
    """The positions of the best scores, in their order; None is a run that diverged.

    Of equal scores the earlier one counts as better: the first candidate is the default.

    Example:
        >>> promoted([0.5, None, 0.7, 0.7], count=2)
        [2, 3]
    """
    ranked = sorted(
        (k for k, score in enumerate(scores) if score is not None),
        key=lambda k: (-(scores[k] or 0.0), k),
    )
    return sorted(ranked[:count])
