"""How a fleet does, from what the server leaves in its folder; without PyTorch and Flower.

It only reads, so it may be asked at any time, also while the server writes.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError

__all__ = ["ClientStatus", "FleetLog", "FleetStatus", "Plan", "read_plan"]

LAST_ROUNDS = 20
"""The time left is reckoned from so many of the last rounds."""
# What a configuration says that leaves them out.
ROUNDS, ROUND_SECONDS, WAIT_FOR, ALGORITHM = 500, 60.0, 1, "fedpbc"


@dataclass(frozen=True)
class Plan:
    """What is to be done, from ``fleet.toml``."""

    rounds: int
    clients: int
    algorithm: str
    round_seconds: float
    wait_for: int


@dataclass(frozen=True)
class ClientStatus:
    """One client, as far as the server knows.

    Attributes:
        client: its number.
        node: Flower's number of its node; None before it was heard.
        answered: whether its answer counted in the last round.
        is_refused: whether its answer to the last round was refused.
        last_round: the last round in which its answer counted; None: never.
        seconds_ago: since that round ended.
        owed: rounds of local work since the server last counted this client, which it has done or
            will have to do; None where a missed round is not made up for.
        staleness: t − τ_i, as the simulator has it: 1 for who answered in the last round.
        refused: in how many rounds its answer was refused.
    """

    client: int
    node: int | None
    answered: bool
    is_refused: bool
    last_round: int | None
    seconds_ago: float | None
    owed: int | None
    staleness: int
    refused: int

    @property
    def link(self) -> str:
        """What the last round says of the link."""
        if self.answered:
            return "answered"
        if self.is_refused:
            return "refused"
        if self.last_round is not None:
            return f"silent since {self.last_round + 1}"
        return "never heard" if self.node is None else "no answer yet"


@dataclass(frozen=True)
class FleetStatus:
    """A fleet between two rounds.

    Attributes:
        plan: what is to be done.
        done: rounds that are over.
        clients: one each, by number.
        seconds_left: by the mean of the last rounds; None before the first.
        quiet_for: seconds since the last round ended, or since the first client was heard.
    """

    plan: Plan
    done: int
    clients: list[ClientStatus]
    seconds_left: float | None
    quiet_for: float | None

    @property
    def is_over(self) -> bool:
        """Whether all rounds are done."""
        return self.done >= self.plan.rounds

    @property
    def answered(self) -> int:
        """How many clients' answers counted in the last round."""
        return sum(one.answered for one in self.clients)

    @property
    def heard(self) -> int:
        """How many clients were ever heard."""
        return sum(one.node is not None for one in self.clients)

    def worst(self, most: int) -> list[ClientStatus]:
        """All clients by number; of more than ``most``, those that were away longest."""
        if len(self.clients) <= most:
            return self.clients
        return sorted(self.clients, key=lambda one: (-one.staleness, one.client))[:most]


class FleetLog:
    """A server's folder, read again and again: only what is new since the last time.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "fleet.toml").write_text("clients = 2")
        >>> line = {"round": 0, "began_s": 0.0, "ended_s": 9.0, "at": 109.0, "active": [1],
        ...         "selected": [1], "refused": [], "known": [0, 1], "everyone": True}
        >>> _ = (folder / "rounds.jsonl").write_text(json.dumps(line) + "\\n")
        >>> zero, one = FleetLog(folder).status(now=110.0).clients
        >>> (zero.staleness, zero.owed), (one.staleness, one.owed, one.seconds_ago)
        ((2, 1), (1, 0, 1.0))
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = read_plan(folder)
        self._forget()

    def _forget(self) -> None:
        m = self.plan.clients
        self._file, self._offset = (-1, -1), 0
        self._done, self._at, self._ended_s, self._everyone = 0, 0.0, 0.0, False
        self._lengths: deque[float] = deque(maxlen=LAST_ROUNDS)
        self._last: set[int] = set()
        self._last_refused: set[int] = set()
        self._contact: list[tuple[int, float] | None] = [None] * m
        self._counted = [-1] * m
        self._refused = [0] * m

    def status(self, now: float | None = None) -> FleetStatus:
        """How the fleet does now; ``now`` is in seconds since 1970."""
        now = time.time() if now is None else now
        for line in self._new_lines():
            self._take(line)
        heard = read_heard(self.folder / "heard.json")
        quiet_for = seconds_left = None
        if self._done:
            quiet_for = max(0.0, now - self._at)
            each = sum(self._lengths) / len(self._lengths)
            seconds_left = max(0.0, (self.plan.rounds - self._done) * each - min(quiet_for, each))
        elif heard:
            quiet_for = max(0.0, now - min(at for _, at in heard.values()))
        clients = [self._client(i, heard, now) for i in range(self.plan.clients)]
        return FleetStatus(self.plan, self._done, clients, seconds_left, quiet_for)

    def _client(self, i: int, heard: dict[int, tuple[int, float]], now: float) -> ClientStatus:
        contact = self._contact[i]
        return ClientStatus(
            client=i,
            node=heard[i][0] if i in heard else None,
            answered=i in self._last,
            is_refused=i in self._last_refused,
            last_round=None if contact is None else contact[0],
            seconds_ago=None if contact is None else max(0.0, now - contact[1]),
            owed=self._done - 1 - self._counted[i] if self._everyone else None,
            staleness=self._done - (-1 if contact is None else contact[0]),
            refused=self._refused[i],
        )

    def _take(self, line: dict[str, Any]) -> None:
        t, at, m = line["round"], line["at"], self.plan.clients
        self._last = {i for i in line["active"] if 0 <= i < m}
        self._last_refused = {i for i in line["refused"] if 0 <= i < m} - self._last
        for i in self._last:
            self._contact[i] = t, at
        for i in line["selected"]:
            if i in self._last:
                self._counted[i] = t
        for i in self._last_refused:
            self._refused[i] += 1
        # What passes between two rounds is part of how long they take.
        self._lengths.append(line["ended_s"] - (self._ended_s if t else line["began_s"]))
        self._done, self._at, self._ended_s = t + 1, at, line["ended_s"]
        self._everyone = bool(line["everyone"])

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """What was added; all of it again where a resumed server wrote the log anew."""
        try:
            with (self.folder / "rounds.jsonl").open("rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._offset:
                    self._forget()
                    self._file = found.st_dev, found.st_ino
                file.seek(self._offset)
                for text in file:
                    line = read_line(text)
                    # The last may be half written; it is read when it is whole.
                    if line is None or line["round"] != self._done:
                        return
                    self._offset += len(text)
                    yield line
        except FileNotFoundError:
            if self._done:
                self._forget()


KEYS = {"round", "began_s", "ended_s", "at", "active", "selected", "refused", "everyone"}


def read_line(text: bytes) -> dict[str, Any] | None:
    """A whole line of the log of rounds, or None."""
    if not text.endswith(b"\n"):
        return None
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and line.keys() >= KEYS else None


def read_heard(path: Path) -> dict[int, tuple[int, float]]:
    """For each client that was heard its node, and when that was; written whole, or not at all."""
    try:
        found = json.loads(path.read_bytes())
        return {int(i): (int(one["node"]), float(one["at"])) for i, one in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError("FOLDER", str(path.parent), f"with a readable {path.name}") from None


def read_plan(folder: Path) -> Plan:
    """What ``fleet.toml`` says, as far as a table of clients needs it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "fleet.toml").write_text("clients = 3")
        >>> read_plan(folder).rounds
        500
    """
    path = folder / "fleet.toml"
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        right = "a fleet server's folder, with fleet.toml in it"
        raise InputError("FOLDER", str(folder), right) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError("FOLDER", str(folder), f"with a readable fleet.toml ({error})") from None
    fleet = given.get("fleet", {})
    algorithm = given.get("algorithm", ALGORITHM)
    if isinstance(algorithm, dict):
        algorithm = algorithm.get("name", ALGORITHM)
    try:
        plan = Plan(
            rounds=int(given.get("rounds", ROUNDS)),
            clients=int(given["clients"]),
            algorithm=str(algorithm),
            round_seconds=float(fleet.get("round_seconds", ROUND_SECONDS)),
            wait_for=int(fleet.get("wait_for", WAIT_FOR)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        right = f"with clients, rounds and [fleet] in its fleet.toml ({type(error).__name__}: "
        raise InputError("FOLDER", str(folder), f"{right}{error})") from None
    return plan
