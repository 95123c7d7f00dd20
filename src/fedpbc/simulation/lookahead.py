"""Which segments are submitted before their round: those of the contacts that come next.

A segment can be submitted as soon as its start model exists, long before the round that needs its
result. With a million clients most contacts are far ahead, or never: an engine could do nothing
with them, and each would take memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedpbc.links import Timetable

__all__ = ["SUBMITTED", "Lookahead"]

SUBMITTED = 16_384
"""Segments that are submitted at a time: of fewer clients all, of more those due first."""


class Lookahead:
    """Submits clients' next segments, and knows whose end in which round.

    ``submit`` is called with a client and the last round of its segment.

    Example:
        >>> from fedpbc.links import from_table
        >>> links = from_table([[1, 0], [0, 1], [1, 1]])
        >>> ahead = Lookahead(links, lambda client, last: print(client, "until", last))
        >>> ahead.begin(range(2), first=0)
        0 until 0
        1 until 1
        >>> ended = ahead.ended(0)
        >>> ahead.submit_next(ended, first=1)
        0 until 2
    """

    def __init__(self, uplink: Timetable, submit: Callable[[int, int], None]) -> None:
        self._uplink, self._submit = uplink, submit
        self._due: dict[int, list[int]] = {}
        self._waiting = np.zeros(uplink.clients, dtype=bool)
        self._count = 0
        # Of the contacts before this round every client's next one is submitted.
        self._horizon = 0

    def begin(self, clients: Sequence[int], first: int) -> None:
        """Submit the segments of clients that have none yet, when round ``first`` comes next."""
        if len(clients) <= SUBMITTED:
            self._horizon = self._uplink.rounds
            self.submit_next(clients, first)
        else:
            self._horizon = first
            self._extend(len(clients))

    def submit_next(self, clients: Iterable[int], first: int, until: int | None = None) -> None:
        """Submit the next segments of clients, from round ``first`` on, if it is time to.

        They end with the next contact, or after round ``until``, if that is given and earlier.
        """
        for client in clients:
            last = self._uplink.next_contact(client, first - 1)
            if until is not None:
                last = until if last is None else min(last, until)
            if last is not None and (until is not None or last < self._horizon):
                self._add(client, last)

    def ended(self, t: int) -> list[int]:
        """The clients whose segments end in round ``t``, ascending; they have none from now on."""
        clients = sorted(self._due.pop(t, []))
        self._waiting[clients] = False
        self._count -= len(clients)
        return clients

    def extend(self, members: int, t: int) -> None:
        """Submit what ends in round ``t``, of the first ``members`` clients, and some of later."""
        while self._horizon <= t:
            self._submit_round(members)
        self._extend(members)

    def _extend(self, members: int) -> None:
        while self._horizon < self._uplink.rounds and self._count < SUBMITTED:
            self._submit_round(members)

    def _submit_round(self, members: int) -> None:
        """Submit what ends in the next round, unless the client has an earlier contact."""
        active = self._uplink.active(self._horizon)
        active = active[active < members]
        for client in active[~self._waiting[active]].tolist():
            self._add(client, self._horizon)
        self._horizon += 1

    def _add(self, client: int, last: int) -> None:
        self._due.setdefault(last, []).append(client)
        self._waiting[client] = True
        self._count += 1
        self._submit(client, last)
