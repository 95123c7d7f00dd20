"""What a client keeps from contact to contact, in Flower's context, counted exactly once.

A new state belongs to the reply that was computed with it, and counts if the server counted that
reply, which the client cannot know: replies get lost. So states are kept by the token that the
reply carried, and each request names the token that was counted. Which state is used depends on the
request alone; a message that is delivered twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

__all__ = ["StateHistory"]

INDEX = "fedpbc.kept"
"""The key of the record that lists the states; each state has a record of its own."""
COUNTED = 2
"""Counted states that are kept: the last, and the one before for a server that repeats a round."""


class StateHistory:
    """The states of one job in a context.

    Example:
        >>> context = RecordDict()
        >>> kept = StateHistory(context, "job")
        >>> kept.put("a", round=1, counted="", state={"control": np.ones(2)})
        >>> StateHistory(context, "job").get("a")["control"].tolist()
        [1.0, 1.0]
        >>> StateHistory(context, "another job").get("a") is None
        True
    """

    def __init__(self, context: RecordDict, job: str) -> None:
        self._context, self._job = context, job
        index = context.config_records.get(INDEX, {})
        is_mine = index.get("job") == job
        # In the order of the replies.
        self._tokens: list[str] = list(index["tokens"]) if is_mine else []
        self._rounds: list[int] = list(index["rounds"]) if is_mine else []
        if index and not is_mine:
            self._keep([], [])

    @property
    def last_round(self) -> int:
        """The round of the last reply; 0 if there was none."""
        return max(self._rounds, default=0)

    def get(self, token: str) -> dict[str, NDArray[Any]] | None:
        """The state that belongs to a reply; None if it is not here."""
        if token not in self._tokens:
            return None
        return {n: a.numpy() for n, a in self._context.array_records[_key(token)].items()}

    def put(self, token: str, round: int, counted: str, state: Mapping[str, NDArray[Any]]) -> None:
        """Add the state of a reply; those that can no longer count are dropped."""
        record = ArrayRecord({name: Array(np.asarray(part)) for name, part in state.items()})
        last = self._tokens.index(counted) if counted in self._tokens else -1
        kept = range(max(0, last + 1 - COUNTED), last + 1)
        # Replies to this round: the message may have come twice, and either may be counted.
        repeated = [k for k, r in enumerate(self._rounds) if r == round and k > last]
        places = [*kept, *repeated]
        self._context[_key(token)] = record
        self._keep(
            [*(self._tokens[k] for k in places), token], [*(self._rounds[k] for k in places), round]
        )

    def _keep(self, tokens: list[str], rounds: list[int]) -> None:
        names = {_key(token) for token in tokens}
        for key in [k for k in self._context.array_records if k.startswith(f"{INDEX}.")]:
            if key not in names:
                del self._context[key]
        self._tokens, self._rounds = tokens, rounds
        self._context[INDEX] = ConfigRecord({"job": self._job, "tokens": tokens, "rounds": rounds})


def _key(token: str) -> str:
    return f"{INDEX}.{token}"
