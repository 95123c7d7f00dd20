"""What a page shows of a fleet's rounds: one value per round each, and the last timetable."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FleetHistory"]

SHOWN_ROUNDS, SHOWN_CLIENTS = 400, 200
"""Of the timetable: a pixel each."""
POINTS = 400
"""Of a curve: further rounds are left out."""
EVENTS = {
    "joined": "joined",
    "left": "left for good",
    "changed": "was accepted with another app or other data",
}
"""By the name in the server's log."""
MAX_EVENTS = 100


class FleetHistory:
    """All rounds so far; a :class:`~fedpbc.deployment.ops.status.FleetLog` adds them.

    Example:
        >>> history = FleetHistory()
        >>> line = {"round": 0, "at": 9.0, "active": [1], "bytes_up": 8, "bytes_down": 16}
        >>> history.add(line, seconds=2.0, staleness=[2, 1], refused=0)
        >>> history.curves()["staleness_mean"], history.timetable(2).tolist()
        ([1.5], [[False, True]])
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything: a server has written its log anew."""
        self._values: dict[str, list[float | None]] = {
            name: []
            for name in (
                *("round", "answered", "refused", "staleness_mean", "staleness_max", "seconds"),
                *("bytes_up", "bytes_down"),
            )
        }
        self._active: deque[list[int]] = deque(maxlen=SHOWN_ROUNDS)
        self.events: deque[tuple[int, float, int, str]] = deque(maxlen=MAX_EVENTS)

    def add(
        self, line: Mapping[str, Any], seconds: float, staleness: Sequence[int], refused: int
    ) -> None:
        """Add a round of the log, how long it took, and what its clients are after it."""
        values: dict[str, float | None] = {
            "round": line["round"],
            "answered": len(line["active"]),
            "refused": refused,
            "staleness_mean": sum(staleness) / len(staleness) if staleness else None,
            "staleness_max": max(staleness, default=None),
            "seconds": seconds,
        }
        for name in ("bytes_up", "bytes_down"):
            # Totals, as those of the status; None from a round without bytes on.
            so_far = self._values[name][-1] if self._values[name] else 0
            in_round = line.get(name)
            values[name] = None if so_far is None or in_round is None else so_far + in_round
        for name, value in values.items():
            self._values[name].append(value)
        self._active.append(list(line["active"]))
        for name, text in EVENTS.items():
            for client in line.get(name, ()):
                self.events.append((line["round"], line["at"], client, text))

    def curves(self) -> dict[str, list[float | None]]:
        """The values of all rounds; of many, those of some, the last among them."""
        rounds = len(self._values["round"])
        step = max(1, -(-rounds // POINTS))
        kept = slice((rounds - 1) % step if rounds else 0, None, step)
        return {name: values[kept] for name, values in self._values.items()}

    @property
    def first_shown(self) -> int:
        """The first round of the timetable."""
        return len(self._values["round"]) - len(self._active)

    def timetable(self, clients: int) -> NDArray[np.bool_]:
        """Who answered in the last rounds, of the first clients."""
        up = np.zeros((len(self._active), min(clients, SHOWN_CLIENTS)), dtype=np.bool_)
        for k, active in enumerate(self._active):
            up[k, [i for i in active if i < up.shape[1]]] = True
        return up
