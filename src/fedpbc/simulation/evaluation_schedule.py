"""After which rounds a run is evaluated, and over which of them results are averaged."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EvaluationSchedule", "window_of"]


def window_of(rounds: int) -> int:
    """Over how many last rounds of a run evaluations are averaged: 100, but at most a fifth.

    Example:
        >>> window_of(2000), window_of(300), window_of(3)
        (100, 60, 1)
    """
    return max(1, min(100, rounds // 5))


@dataclass(frozen=True)
class EvaluationSchedule:
    """Every so many rounds, in the window at another interval, and always after the last round.

    Rounds are counted from 1: round n is evaluated after n rounds.

    Attributes:
        rounds: T.
        every: rounds between evaluations.
        every_at_end: rounds between those of the last rounds, which are averaged
            (:func:`window_of`); None: the same.

    Example:
        >>> EvaluationSchedule(rounds=50, every=20, every_at_end=4).due(50)
        [20, 40, 44, 48, 50]
    """

    rounds: int
    every: int
    every_at_end: int | None = None

    @property
    def _before(self) -> int:
        """The rounds before the window."""
        return self.rounds - window_of(self.rounds)

    @property
    def _dense(self) -> int:
        return self.every_at_end or self.every

    def number(self, n: int) -> int:
        """The round of the n-th evaluation, n from 1; the last round where there are fewer."""
        sparse = self._before // self.every
        if n <= sparse:
            return n * self.every
        return min((self._before // self._dense + n - sparse) * self._dense, self.rounds)

    def next_after(self, done: int) -> int:
        """The first round after ``done`` rounds that is evaluated."""
        evaluated = min(done, self._before) // self.every
        evaluated += max(0, done // self._dense - self._before // self._dense)
        return self.number(evaluated + 1)

    def is_due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return self.next_after(round - 1) == round

    def due(self, done: int) -> list[int]:
        """Which of the first ``done`` rounds are evaluated."""
        rounds, following = [], self.next_after(0)
        while following <= done:
            rounds.append(following)
            if following == self.rounds:
                break
            following = self.next_after(following)
        return rounds
