"""Scores, differences and costs as people read them: accuracies in %, losses as they are."""

from __future__ import annotations

from fedpbc.experiments.intervals import Interval
from fedpbc.experiments.paired import Difference
from fedpbc.experiments.recovered import Recovered

__all__ = [
    "between",
    "difference_text",
    "distance_text",
    "number_text",
    "recovered_text",
    "score_text",
]


def number_text(value: float, has_classes: bool, *, sign: bool = False) -> str:
    """A score or a difference of scores; accuracies in points.

    Example:
        >>> number_text(0.0321, True, sign=True), number_text(-0.0004, True), number_text(-2, False)
        ('+3.2', '0.0', '−2')
    """
    text = f"{100 * abs(value):.1f}" if has_classes else f"{abs(value):.3g}"
    if float(text) == 0:
        return text
    return ("−" if value < 0 else "+" if sign else "") + text


def between(interval: Interval, has_classes: bool) -> str:
    """The ends of an interval.

    Example:
        >>> between(Interval(-0.01, 0.043), True)
        '−1.0 to 4.3'
    """
    return f"{number_text(interval.low, has_classes)} to {number_text(interval.high, has_classes)}"


def score_text(value: float, has_classes: bool) -> str:
    """A mean score: an accuracy, or the loss.

    Example:
        >>> score_text(0.821, True), score_text(-1.25, False)
        ('82.1 %', 'loss 1.25')
    """
    return f"{100 * value:.1f} %" if has_classes else f"loss {-value:.4g}"


def difference_text(difference: Difference, has_classes: bool) -> str:
    """A difference with its interval and the seeds won.

    Example:
        >>> difference_text(Difference("a", "b", (0, 1), 0.03, Interval(0.02, 0.04), 2, 0), True)
        '+3.0 (2.0 to 4.0), 2/2'
        >>> difference_text(Difference("a", "b", (5,), 0.03, None, 1, 0), True)
        '+3.0 (one seed)'
    """
    mean, seeds = number_text(difference.mean, has_classes, sign=True), len(difference.seeds)
    if difference.interval is None:
        return f"{mean} (one seed)"
    tied = f", {difference.tied} tied" if difference.tied else ""
    within = between(difference.interval, has_classes)
    return f"{mean} ({within}), {difference.won}/{seeds}{tied}"


def distance_text(difference: Difference, has_classes: bool) -> str:
    """A difference in words, with the interval of just that; a lower loss is better.

    Example:
        >>> distance_text(Difference("a", "b", (0, 1), 0.03, Interval(-0.01, 0.07), 2, 0), True)
        '3.0 points above b (95 % interval −1.0 to 7.0)'
        >>> distance_text(Difference("a", "b", (0, 1), 0.5, Interval(0.4, 0.6), 2, 0), False)
        'a loss 0.5 lower than that of b (95 % interval 0.4 to 0.6)'
    """
    is_better, interval = difference.mean >= 0, difference.interval
    size = number_text(abs(difference.mean), has_classes)
    if has_classes:
        text = f"{size} points {'above' if is_better else 'below'} {difference.baseline}"
    else:
        way = "lower" if is_better else "higher"
        text = f"a loss {size} {way} than that of {difference.baseline}"
    if interval is None:
        return text
    if difference.constant:
        return f"{text} (the same with every seed)"
    ends = between(interval if is_better else interval.negated(), has_classes)
    return f"{text} (95 % interval {ends})"


def recovered_text(share: Recovered) -> str:
    """A share in %, with its interval.

    Example:
        >>> recovered_text(Recovered(0.64, Interval(0.51, 0.8), (0, 1, 2)))
        '64 % (51 to 80)'
    """
    if share.value is None:
        return "undefined"
    text = f"{_percent(share.value)} %"
    if share.interval is None:
        return text
    return f"{text} ({_percent(share.interval.low)} to {_percent(share.interval.high)})"


def _percent(share: float) -> str:
    text = f"{100 * abs(share):.0f}" if abs(share) < 1e4 else f"{100 * abs(share):.2g}"
    return ("−" if share < 0 and float(text) else "") + text
