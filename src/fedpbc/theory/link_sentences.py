"""What statistics and theory say of links, one plain sentence each."""

from __future__ import annotations

import math

import numpy as np

from fedpbc.theory.arguments import Floats
from fedpbc.theory.link_statistics import LinkStatistics
from fedpbc.theory.run_lengths import RunLengths
from fedpbc.theory.stationarity import LEVEL
from fedpbc.theory.summary import TheorySummary

__all__ = [
    "format_devices",
    "format_p",
    "format_rounds",
    "format_share",
    "link_sentences",
    "theory_sentences",
]

WEAK = 0.01
"""Correlations and total variations below this are not worth a warning."""
STRONG = 0.1
"""Correlations below this are called small."""


def link_sentences(statistics: LinkStatistics) -> dict[str, str]:
    """One sentence for each subject: availability, outages, contacts, change, …"""
    sentences = {
        "availability": _availability(statistics),
        "outages": _runs(statistics, statistics.outages, "outage", "down"),
        "contacts": _runs(statistics, statistics.contacts, "contact", "up"),
        "change": _change(statistics),
        "rounds": _round_dependence(statistics),
        "clients": _correlation(statistics),
    }
    if statistics.round_seconds is not None:
        sentences["day"] = _day(statistics)
    if statistics.data is not None:
        sentences["data"] = _data(statistics)
    return sentences


def theory_sentences(summary: TheorySummary) -> dict[str, str]:
    """What the theory says of the same links: FedAvg's weights, mixing and staleness."""
    weights = summary.weights.get("expected", summary.weights.get("measured"))
    if weights is None:
        return {"weights": "No device was ever up: nothing can be learned over these links."}
    kind = "expected" if "expected" in summary.weights else "measured"
    sentences = {
        "weights": _weights(weights, summary.total_variation[kind]),
        "mixing": _mixing(*summary.rho),
    }
    measured, expected = summary.measured, summary.expected
    if measured is not None:
        never = int((measured.shares == 0).sum())
        sentences["staleness"] = _staleness(measured.staleness, measured.staleness_max, never)
    elif expected is not None:
        sentences["staleness"] = _staleness(expected.staleness)
    return sentences


def _weights(weights: Floats, variation: float) -> str:
    clients = len(weights)
    if variation < WEAK:
        return (
            "Plain averaging (FedAvg) counts all devices almost equally: "
            f"{format_share(variation)} of the weight is misplaced."
        )
    top = np.sort(weights)[::-1][: max(1, clients // 10)]
    heaviest = (
        f"the {len(top):,} devices with the most weight have"
        if len(top) > 1
        else "the device with the most weight has"
    )
    text = (
        "Plain averaging (FedAvg) counts devices by how often they are up, not equally: "
        f"{format_share(variation)} of the weight is misplaced; {heaviest} "
        f"{format_share(float(top.sum()))} of it instead of {format_share(len(top) / clients)}"
    )
    ignored = int((weights < 1 / clients / 10).sum())
    if not ignored:
        return f"{text}."
    have = "has" if ignored == 1 else "have"
    return (
        f"{text}, and {ignored:,} of {clients:,} devices {have} less than a tenth of an equal "
        "share."
    )


def _mixing(rho: float | None, how: str) -> str:
    if rho is None:
        return "How fast models mix is not computed for so many devices."
    if rho >= 1:
        return (
            "Some devices are never averaged with the others, so the models cannot come to agree."
        )
    if rho == 0:
        return "After a round, no disagreement between devices is left (ρ = 0)."
    rounds = max(1.0, math.log(2) / -math.log(rho))
    known = {"bound": "at most ", "measured": "about "}.get(how, "")
    return (
        f"Averaging whoever is up halves the disagreement between devices in {known}"
        f"{format_rounds(rounds, None)} (ρ = {rho:.3g})."
    )


def _staleness(staleness: Floats, longest: int | None = None, never: int = 0) -> str:
    if longest is None:
        return f"At the start of a round, a device was last heard {_ago(staleness)} on average."
    if longest == 1:
        return "Every device is heard in every round."
    # A device that was never heard has no last contact, so there is no worst one.
    rest = (
        f"; {never:,} of {len(staleness):,} never got through"
        if never
        else f", and {format_rounds(longest, None)} ago at worst"
    )
    return (
        f"At the start of a round, a device was last heard {_ago(staleness)} on average{rest}. "
        "Before a device's first contact, the rounds since the start count."
    )


def _ago(staleness: Floats) -> str:
    return f"{format_rounds(float(staleness.mean()), None)} ago"


def _availability(statistics: LinkStatistics) -> str:
    never, clients = statistics.never, statistics.clients
    heard = {0: "every device was heard", 1: "one was never heard"}.get(
        never, f"{never:,} of {clients:,} were never heard"
    )
    quantiles = statistics.quantiles
    if quantiles[1.0] - quantiles[0.0] < 0.005:
        return f"Every device is up in {format_share(quantiles[0.5])} of the rounds."
    empty = statistics.empty_rounds
    nobody = f" In {empty:,} of {statistics.rounds:,} rounds nobody was up." if empty else ""
    return (
        f"Half of the devices are up in at most {format_share(quantiles[0.5])} of the rounds, a "
        f"tenth in at most {format_share(quantiles[0.1])}; {heard}.{nobody}"
    )


def _runs(statistics: LinkStatistics, lengths: RunLengths, name: str, state: str) -> str:
    if not lengths.runs:
        return f"No device was ever {state}."
    if lengths.mean is None:
        return f"Every {name} was still going on in the last round."
    median, high, _ = lengths.quantiles
    parts = [f"A device stays {state} for {_duration(statistics, lengths.mean)} on average"]
    if median is not None:
        parts.append(f"half of the {name}s last at most {_duration(statistics, median)}")
    if high is not None:
        parts.append(f"nine in ten at most {_duration(statistics, high)}")
    longest = _duration(statistics, lengths.longest)
    cut = lengths.runs - lengths.complete
    at_least = "" if lengths.longest_complete else "at least "
    cut_off = ""
    if cut:
        cut_off = f" ({cut:,} of {lengths.runs:,} are cut off by the first or the last round)"
    return "; ".join(parts) + f"; the longest lasted {at_least}{longest}{cut_off}."


def _change(statistics: LinkStatistics) -> str:
    p, tests, share = statistics.stationarity_p, statistics.client_tests, statistics.share_test
    if statistics.constant:
        return f"No link changed in {_these(statistics)}."
    if p is None:
        few = f"too few outages in {_these(statistics)}"
        return f"Whether links change over time cannot be told: {few}."
    if p > LEVEL:
        single = f" and {tests.tested:,} single devices" if tests.tested > 1 else ""
        return (
            "Links do not visibly change over time: tested were the share of devices that are up"
            f"{single}, allowing for long outages ({format_p(p)})."
        )
    changes = []
    if share is not None and share.p <= LEVEL:
        if share.cycles > 1:
            period = _duration(statistics, share.period)
            changes.append(f"the share of devices that are up rises and falls every {period}")
        else:
            low, high = float(statistics.curve.min()), float(statistics.curve.max())
            changes.append(
                f"the share of devices that are up drifts, between {format_share(low)} and "
                f"{format_share(high)}"
            )
    if statistics.day is not None and statistics.day.p <= LEVEL:
        changes.append("with the hour of the day")
    if tests.changing:
        changes.append(
            f"{tests.changing:,} of {tests.tested:,} devices that were tested do so on their own"
        )
    return f"Links change over time ({format_p(p)}): {'; '.join(changes) or 'some devices do'}."


def _round_dependence(statistics: LinkStatistics) -> str:
    dependence = statistics.round_dependence
    if statistics.constant:
        return "Nothing to remember: no link changed."
    if dependence is None:
        return f"None of the {statistics.sampled:,} devices that were looked at changed."
    if dependence.p > LEVEL:
        return (
            "Links do not visibly remember the round before: outages are as long as chance makes "
            f"them ({format_p(dependence.p)})."
        )
    longer = ""
    if dependence.stretch is not None:
        longer = (
            f": outages are {_number(dependence.stretch)} times as long as if every round were "
            "drawn anew"
        )
    return (
        f"Links remember the round before (autocorrelation {dependence.lag1:.2f}, "
        f"{format_p(dependence.p)}){longer}."
    )


def _correlation(statistics: LinkStatistics) -> str:
    correlation = statistics.correlation
    if correlation.plain is None or correlation.plain_p is None:
        return "Fewer than two links change: whether devices fail together cannot be told."
    if correlation.plain_p > LEVEL:
        return (
            "Devices come and go independently of each other, as far as these rounds show "
            f"({format_p(correlation.plain_p)})."
        )
    beyond, p = correlation.beyond_course, correlation.beyond_course_p
    if beyond is None or p is None:
        why = ""
    elif p > LEVEL:
        why = "; a common course over time explains it"
    else:
        why = f"; {beyond:.3f} of it is left without a common course over time"
    size = f"a correlation of {correlation.plain:.3f} on average"
    p_value = format_p(correlation.plain_p)
    spread, adds_up = "", ""
    if correlation.overdispersion is not None:
        spread = (
            "the number that is up per round varies "
            f"{_number(correlation.overdispersion)} times as much (in variance) as if they were "
            "independent"
        )
        # Of many devices, pairs that hardly depend on each other make up a large variance.
        adds_up = "over all devices it adds up: " if correlation.overdispersion >= 2 else ""
    if correlation.plain >= STRONG:
        text = f"Devices come and go together: two of them have {size} ({p_value}){why}"
        return f"{text}; {spread}." if spread else f"{text}."
    # A correlation that is certain need not be large.
    much = "almost nothing" if correlation.plain < WEAK else "little"
    text = (
        f"Any two devices have {much} to do with each other: {size}, though more than by chance "
        f"({p_value}){why}"
    )
    return f"{text}; {adds_up}{spread}." if spread else f"{text}."


def _day(statistics: LinkStatistics) -> str:
    day = statistics.day
    if day is None:
        return "These rounds span less than two days: whether the hour matters cannot be told."
    if day.p > LEVEL:
        return (
            f"The hour of the day makes no difference that these {_number(day.days)} days could "
            f"show ({format_p(day.p)})."
        )
    return (
        f"The hour of the day matters ({format_p(day.p)}): most devices are up in hour "
        f"{day.most} ({format_share(float(day.profile[day.most]))}) and fewest in hour "
        f"{day.fewest} ({format_share(float(day.profile[day.fewest]))}), counted from the "
        "first round."
    )


def _data(statistics: LinkStatistics) -> str:
    data = statistics.data
    assert data is not None
    if data.p > LEVEL or data.total_variation < WEAK:
        almost = "" if data.p > LEVEL else "almost "
        return (
            f"How often a device is up has {almost}nothing to do with its data, as far as classes "
            f"show: devices that are up often hold {almost}the same mix of classes as the others "
            f"({format_p(data.p)})."
        )
    return (
        "How often a device is up depends on its data: devices that are up often hold another mix "
        f"of classes than the others ({format_p(data.p)}). Counted by how often its devices are "
        f"up, class {data.over} has {100 * data.gain:.1f} percentage points too much weight and "
        f"class {data.under} {100 * data.loss:.1f} too little; in all, "
        f"{format_share(data.total_variation)} of the weight is on the wrong classes."
    )


def format_share(share: float) -> str:
    """A share in per cent, with as many digits as say something.

    Example:
        >>> format_share(0.5), format_share(0.0123), format_share(0.0004), format_share(0)
        ('50 %', '1.2 %', 'less than 0.1 %', '0 %')
    """
    if share == 0 or share >= 0.0995:
        return f"{100 * share:.0f} %"
    return "less than 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"


def format_p(p: float) -> str:
    """A p value.

    Example:
        >>> format_p(0.3127), format_p(0.0312), format_p(1e-9)
        ('p = 0.31', 'p = 0.031', 'p below 0.001')
    """
    return "p below 0.001" if p < 0.001 else f"p = {p:.2g}"


def format_rounds(rounds: float, round_seconds: float | None) -> str:
    """Rounds, and how long they take if that is known.

    Example:
        >>> format_rounds(1, None), format_rounds(12.34, 600)
        ('1 round', '12 rounds (2.1 h)')
    """
    text = f"{_number(rounds)} {_plural('round', rounds)}"
    if round_seconds is None:
        return text
    seconds = rounds * round_seconds
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{text} ({seconds / size:.2g} {unit})"
    return f"{text} ({seconds:.2g} s)"


def format_devices(count: int) -> str:
    """A number of devices.

    Example:
        >>> format_devices(1), format_devices(1200)
        ('1 device', '1,200 devices')
    """
    return f"{count:,} {_plural('device', count)}"


def _these(statistics: LinkStatistics) -> str:
    rounds = statistics.rounds
    return "this one round" if rounds == 1 else f"these {rounds:,} rounds"


def _duration(statistics: LinkStatistics, rounds: float) -> str:
    return format_rounds(rounds, statistics.round_seconds)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _plural(noun: str, count: float) -> str:
    return noun if _number(count) == "1" else f"{noun}s"
