"""Scores, differences and costs as people read them: accuracies in %, losses as they are."""

from __future__ import annotations

from fedpbc.experiments.intervals import Interval
from fedpbc.experiments.paired import Costs, Difference
from fedpbc.experiments.recovered import Recovered
from fedpbc.text import listed

__all__ = [
    "between",
    "costs_text",
    "difference_text",
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


def costs_text(costs: Costs, others: Costs, other: str) -> str:
    """What something costs relative to another.

    Example:
        >>> costs_text(Costs(150, 8, 8, 101, 1), Costs(10, 8, 8, 2, 0), "fedavg")
        "15 × fedavg's local steps, 101 models on the server (fedavg 2) and 1 on a client \
(fedavg 0), with the same bytes up"
        >>> costs_text(Costs(10, None, 8, 2, 0), Costs(10, 8, 8, 2, 0), "fedavg")
        'the same as fedavg: local steps, models on the server and models on a client'
    """
    same, differ = [], []
    for what, cost, baseline_cost in (
        ("local steps", costs.local_steps, others.local_steps),
        ("bytes up", costs.bytes_up, others.bytes_up),
    ):
        ratio = cost / baseline_cost if cost is not None and baseline_cost else None
        if ratio is not None and f"{ratio:.2f}" == "1.00":
            same.append(what)
        elif ratio is not None:
            differ.append(f"{ratio:.3g} × {other}'s {what}")
    models = "models "
    for where, cost, baseline_cost in (
        ("on the server", costs.models_on_server, others.models_on_server),
        ("on a client", costs.models_on_client, others.models_on_client),
    ):
        if cost is None or baseline_cost is None:
            continue
        if cost == baseline_cost:
            same.append(f"models {where}")
        else:
            noun = "model " if models and cost == 1 else models
            differ.append(f"{cost:,} {noun}{where} ({other} {baseline_cost:,})")
            models = ""
    if not differ:
        return f"the same as {other}: {listed(same)}" if same else ""
    return listed(differ) + (f", with the same {listed(same)}" if same else "")
