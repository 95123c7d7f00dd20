"""What a contestant says to the orchestrator: one line of JSON for each line it is given.

    contestant: {"ready": true, "about": {...}, "round_seconds": ...}
    orchestrator: go 5
    contestant: {"seconds": 1.2, "rounds": 5, "steps": 250}
    orchestrator: quit

Commands come on standard input, where waiting takes no processor time. Answers go to a file
descriptor of their own: frameworks print what they like to standard output. Imports nothing but the
standard library: it is read in the peers' environments too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["REPLIES", "BlockTimer", "QuitError", "refuse", "say", "serve", "wait"]

REPLIES = "FEDPBC_BENCH_REPLIES"
"""The environment variable with the descriptor's number."""


class QuitError(Exception):
    """The orchestrator wants no more rounds."""


def say(answer: Mapping[str, Any]) -> None:
    """Send one answer."""
    os.write(int(os.environ[REPLIES]), (json.dumps(answer) + "\n").encode())


def refuse(reason: str) -> None:
    """Say why there is nothing to be timed here."""
    say({"refused": reason})


def wait() -> int:
    """Block until rounds are asked for; raises QuitError when there is nothing more to do."""
    words = sys.stdin.readline().split()
    if len(words) != 2 or words[0] != "go":
        raise QuitError
    return int(words[1])


def serve(run: Callable[[int], int], about: Mapping[str, Any], warm_up: int = 2) -> None:
    """Answer until told to quit; ``run(rounds)`` returns the number of local steps."""
    began = time.perf_counter()
    for _ in range(warm_up):
        began = time.perf_counter()
        run(1)
    say({"ready": True, "about": dict(about), "round_seconds": time.perf_counter() - began})
    while True:
        try:
            rounds = wait()
        except QuitError:
            return
        began = time.perf_counter()
        steps = run(rounds)
        say({"seconds": time.perf_counter() - began, "rounds": rounds, "steps": steps})


class BlockTimer:
    """The same as :func:`serve` for a framework that owns the loop and calls us.

    ``before_round`` must be called at the beginning of every round, in whatever hook the framework
    has for that; between blocks it does not return. ``steps`` is for the caller to count up.
    """

    def __init__(self, about: Mapping[str, Any], warm_up: int = 2) -> None:
        self.about, self.steps = about, 0
        self._left = self._rounds = warm_up
        self._began = time.perf_counter()
        self._is_warm = False

    def before_round(self) -> int:
        """Wait if a block is over; gives the length of a new block, 0 within one."""
        started = 0
        if self._left == 0:
            self._report(time.perf_counter() - self._began)
            started = self._left = self._rounds = wait()
            self.steps = 0
            self._began = time.perf_counter()
        elif self._left == 1 and not self._is_warm:
            # The last round of the warm-up tells how long a round takes.
            self._began, self._rounds = time.perf_counter(), 1
        self._left -= 1
        return started

    def _report(self, seconds: float) -> None:
        if self._is_warm:
            say({"seconds": seconds, "rounds": self._rounds, "steps": self.steps})
        else:
            say({"ready": True, "about": dict(self.about), "round_seconds": seconds})
            self._is_warm = True
