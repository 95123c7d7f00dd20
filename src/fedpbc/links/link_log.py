"""The log of who got through when, in the format that the scheme ``trace`` reads.

Fleets and Flower strategies write it, ``--trace`` replays it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

__all__ = ["is_link_log", "link_intervals", "link_log"]

_FIRST = "# round_seconds = "


def link_log(rounds: Sequence[Collection[int]], clients: int, round_seconds: float) -> str:
    """The text of the log; ``rounds`` are the clients that got through in each round.

    Example:
        >>> print(link_log([[0], []], clients=1, round_seconds=10.0), end="")
        # round_seconds = 10.0
        client,online_from_s,online_until_s
        0,5,15
        0,20,20
    """
    intervals = link_intervals(rounds, clients, round_seconds)
    head = f"{_FIRST}{round_seconds!r}\nclient,online_from_s,online_until_s\n"
    # 12 digits hide rounding errors.
    return head + "".join(f"{i},{a:.12g},{b:.12g}\n" for i, a, b in intervals)


def is_link_log(file: Path) -> bool:
    """Whether a file begins as :func:`link_log` does, so that a newer log may replace it."""
    with file.open("rb") as opened:
        return opened.read(len(_FIRST)) == _FIRST.encode()


def link_intervals(
    rounds: Sequence[Collection[int]], clients: int, round_seconds: float
) -> list[tuple[int, float, float]]:
    """When each client was reachable: (client, from, until), in seconds since the job began.

    The server only knows who replied in which round. Every round counts as ``round_seconds`` long,
    even if it ended early, and a link as up from the middle of a round with a reply to the middle
    of the next. So the scheme ``trace`` reproduces exactly these rounds, and starts over after the
    last. Each client ends with an empty interval, which shows how long the log is, and that the
    client exists even if it never connected.

    Example:
        >>> link_intervals([[0], [0], []], clients=2, round_seconds=10.0)
        [(0, 5.0, 25.0), (0, 30.0, 30.0), (1, 30.0, 30.0)]
    """
    end = len(rounds) * round_seconds
    intervals: list[list[tuple[float, float]]] = [[] for _ in range(clients)]
    for t, active in enumerate(rounds):
        a, b = (t + 0.5) * round_seconds, (t + 1.5) * round_seconds
        for client in active:
            up = intervals[client]
            up.append((up.pop()[0], b) if up and up[-1][1] == a else (a, b))
    for up in intervals:
        if up and up[-1][1] > end:
            # What reaches beyond the end belongs to the start of the repeated log.
            up[-1] = up[-1][0], end
            up.insert(0, (0.0, 0.5 * round_seconds))
        up.append((end, end))
    return [(client, a, b) for client, up in enumerate(intervals) for a, b in up]
