"""A fleet's status, from the files in the server's folder; needs neither PyTorch nor Flower.

It only reads, so it can be queried at any time, also while the server writes.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpbc.deployment.ops.launcher_lock import has_launcher
from fedpbc.deployment.server.identities import refused_identities
from fedpbc.deployment.server.round_log import BYTES, LONGEST_LINE, ROUND_LOG, parse_round
from fedpbc.errors import InputError, one_line
from fedpbc.limits import parse_json, parse_toml
from fedpbc.storage.files import open_regular_file, read_own_file

if TYPE_CHECKING:
    from fedpbc.deployment.ops.fleet_history import FleetHistory

__all__ = ["ClientStatus", "FleetLog", "FleetStatus", "StatusSettings", "read_job_settings"]

RECENT_ROUNDS = 20
"""The remaining time is estimated from this many rounds."""
SERVER_LOG = "server.log"
NODES, SMALL_FILE = "heard.json", 1 << 26
"""The file with the nodes that have connected, and more bytes than it and ``fleet.toml`` have."""
MOST_CLIENTS = 1_000_000
"""Of a fleet: its status holds them all."""
# The configuration's defaults, repeated here because importing it would import PyTorch.
ROUNDS, ROUND_SECONDS, WAIT_FOR, ALGORITHM = 500, 60.0, 1, "fedpbc"


@dataclass(frozen=True)
class StatusSettings:
    """The part of ``fleet.toml`` that a status needs."""

    rounds: int
    clients: int
    algorithm: str
    round_seconds: float
    wait_for: int


@dataclass(frozen=True)
class ClientStatus:
    """One client, as the server sees it.

    Attributes:
        node: Flower's number of its node; None before it first connected.
        answered: whether its answer counted in the last round.
        is_refused: whether its answer to the last round was refused.
        last_round: the last round in which its answer counted; None: never.
        seconds_ago: since that round ended.
        owed: rounds of local work since the server last counted this client, done or still to be
            done; None where missed rounds are not made up for.
        staleness: t − τ_i, as in the simulator: 1 for a client that answered in the last round.
        refused: in how many rounds its answer was refused.
        has_left: whether it has left the job for good.
        since_round: the round since which the client answers, or does not, or has left; None
            before the first answer.
        since_seconds: since the end of the first round in a row that it answered, or of the last.
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
    has_left: bool = False
    since_round: int | None = None
    since_seconds: float | None = None

    @property
    def link(self) -> str:
        """The state of the link in the last round."""
        if self.has_left:
            return "left"
        if self.answered:
            return "answered"
        if self.is_refused:
            return "refused"
        if self.last_round is not None:
            return f"silent since {self.last_round + 1}"
        return "never connected" if self.node is None else "no answer yet"


@dataclass(frozen=True)
class FleetStatus:
    """A fleet between two rounds.

    Attributes:
        clients: one each, by number.
        seconds_left: estimated from recent rounds; None before the first.
        idle_seconds: since the last round ended, or since the first client connected.
        bytes_up: of the vectors in all answers that arrived, counted or not; None in the log of an
            earlier version.
        bytes_down: of the vectors in all messages that were sent, answered or not.
        changed: what has changed at each client that is refused for it, until it is accepted.
        is_running: whether a server runs in the folder, on this machine.
        last_sign: when it last wrote anything, in seconds since 1970; None: never.
    """

    job: StatusSettings
    rounds_done: int
    clients: list[ClientStatus]
    seconds_left: float | None
    idle_seconds: float | None
    bytes_up: int | None = None
    bytes_down: int | None = None
    changed: dict[int, str] = field(default_factory=dict)
    is_running: bool = True
    last_sign: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all rounds are done."""
        return self.rounds_done >= self.job.rounds

    @property
    def answered(self) -> int:
        """How many clients' answers counted in the last round."""
        return sum(client.answered for client in self.clients)

    @property
    def connected(self) -> int:
        """How many of the clients that take part have ever connected."""
        return sum(client.node is not None for client in self.members)

    @property
    def members(self) -> list[ClientStatus]:
        """The clients that take part: those that have not left."""
        return [client for client in self.clients if not client.has_left]

    def longest_absent(self, limit: int) -> list[ClientStatus]:
        """Return all clients by number; of more than ``limit``, those absent longest.

        Those that have left come last.
        """
        if len(self.clients) <= limit:
            return self.clients
        return sorted(self.clients, key=lambda c: (c.has_left, -c.staleness, c.client))[:limit]


class FleetLog:
    """A server's log of rounds, read incrementally; ``history`` gets each round as well."""

    def __init__(self, folder: Path, history: FleetHistory | None = None) -> None:
        self.folder = folder
        self.job = read_job_settings(folder)
        self._history = history
        self._reset()

    def _reset(self) -> None:
        m = self.job.clients
        self._file, self._offset = (-1, -1), 0
        self._rounds_done, self._ended_at, self._ended_s, self._everyone = 0, 0.0, 0.0, False
        self._durations: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._active: set[int] = set()
        self._just_refused: set[int] = set()
        # The round of each client's last contact, and when that round ended.
        self._contact: list[tuple[int, float] | None] = [None] * m
        # The same of the first of the rounds in a row that each client answered.
        self._streak: list[tuple[int, float] | None] = [None] * m
        # The round before each client's first: it starts as if it had been synchronised then.
        self._before = [-1] * m
        self._counted = [-1] * m
        self._refused = [0] * m
        # The round before which each client left, and when that round ended.
        self._left: dict[int, tuple[int, float]] = {}
        # None as soon as a round of an earlier version is among them.
        self._bytes: dict[str, int | None] = dict.fromkeys(BYTES, 0)
        if self._history is not None:
            self._history.clear()

    def status(self, now: float | None = None) -> FleetStatus:
        """Return the current status; ``now`` is in seconds since 1970."""
        now = time.time() if now is None else now
        for line in self._new_lines():
            self._add_round(line)
        nodes = read_nodes(self.folder)
        idle = left = None
        if self._rounds_done:
            idle = max(0.0, now - self._ended_at)
            mean = sum(self._durations) / len(self._durations)
            left = max(0.0, (self.job.rounds - self._rounds_done) * mean - min(idle, mean))
            # From a damaged plan or log nothing can be estimated.
            left = left if math.isfinite(left) else None
        elif nodes:
            idle = max(0.0, now - min(at for _, at in nodes.values()))
        clients = [self._client(i, nodes, now) for i in range(len(self._contact))]
        job = replace(self.job, clients=len(clients) - len(self._left))
        changed, is_running = refused_identities(self.folder), has_launcher(self.folder)
        rounds = self._rounds_done
        return FleetStatus(
            job,
            rounds,
            clients,
            left if is_running else None,
            idle,
            **self._bytes,
            changed=changed,
            is_running=is_running,
            last_sign=last_sign(self.folder),
        )

    def _client(self, i: int, nodes: dict[int, tuple[int, float]], now: float) -> ClientStatus:
        contact, answered = self._contact[i], i in self._active
        since = self._streak[i] if answered else contact
        if has_left := i in self._left:
            since = self._left[i]
        return ClientStatus(
            client=i,
            node=nodes[i][0] if i in nodes else None,
            answered=answered,
            is_refused=i in self._just_refused,
            last_round=None if contact is None else contact[0],
            seconds_ago=None if contact is None else max(0.0, now - contact[1]),
            owed=self._rounds_done - 1 - self._counted[i] if self._everyone else None,
            staleness=self._rounds_done - self._tau(i),
            refused=self._refused[i],
            has_left=has_left,
            since_round=None if since is None else since[0] + (not answered and not has_left),
            since_seconds=None if since is None else max(0.0, now - since[1]),
        )

    def _tau(self, i: int) -> int:
        contact = self._contact[i]
        return self._before[i] if contact is None else contact[0]

    def _add_round(self, line: dict[str, Any]) -> None:
        t, at = line["round"], line["at"]
        for i in line.get("joined", ()):
            if i == len(self._contact):
                self._contact.append(None)
                self._streak.append(None)
                self._before.append(t - 1)
                self._counted.append(t - 1)
                self._refused.append(0)
        m = len(self._contact)
        self._left |= {i: (t, at) for i in line.get("left", ()) if i < m}
        active = {i for i in line["active"] if 0 <= i < m}
        for i in active - self._active:
            self._streak[i] = t, at
        self._active = active
        self._just_refused = {i for i in line["refused"] if 0 <= i < m} - self._active
        for i in self._active:
            self._contact[i] = t, at
        for i in line["selected"]:
            if i in self._active:
                self._counted[i] = t
        for i in self._just_refused:
            self._refused[i] += 1
        for name, total in self._bytes.items():
            in_round = line.get(name)
            self._bytes[name] = None if total is None or in_round is None else total + in_round
        # A duration includes the time between two rounds.
        seconds = line["ended_s"] - (self._ended_s if t else line["began_s"])
        self._durations.append(seconds)
        self._rounds_done, self._ended_at, self._ended_s = t + 1, at, line["ended_s"]
        self._everyone = bool(line["everyone"])
        if self._history is not None:
            staleness = [t + 1 - self._tau(i) for i in range(m) if i not in self._left]
            self._history.add(line, seconds, staleness, len(self._just_refused))

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """Read the new lines; all lines again if a resumed server has rewritten the log."""
        path = self.folder / ROUND_LOG
        try:
            with open_regular_file(path, follow_links=False) as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset:
                    self._reset()
                    self._file = status.st_dev, status.st_ino
                file.seek(self._offset)
                # The last line may be incomplete; it is read once it is complete.
                while (text := file.readline(LONGEST_LINE)).endswith(b"\n"):
                    line = parse_round(text, self._rounds_done, path)
                    self._offset += len(text)
                    yield line
        except FileNotFoundError:
            if self._rounds_done:
                self._reset()


def last_sign(folder: Path) -> float | None:
    """When a server last wrote to one of its logs."""
    paths = [folder / name for name in (SERVER_LOG, ROUND_LOG)]
    return max((path.lstat().st_mtime for path in paths if path.exists()), default=None)


def read_nodes(folder: Path) -> dict[int, tuple[int, float]]:
    """Read, for each client that has connected, its node and when it first did."""
    try:
        nodes = parse_json(read_own_file(folder, NODES, SMALL_FILE))
        return {int(i): (int(entry["node"]), float(entry["at"])) for i, entry in nodes.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        expected = f"with a readable {NODES} ({one_line(error)})"
        raise InputError("FOLDER", str(folder), expected) from None


def read_job_settings(folder: Path) -> StatusSettings:
    """Read the part of ``fleet.toml`` that a status needs."""
    try:
        content = parse_toml(read_own_file(folder, "fleet.toml", SMALL_FILE).decode())
    except (FileNotFoundError, NotADirectoryError):
        expected = "the folder of a fleet's server, with fleet.toml"
        raise InputError("FOLDER", str(folder), expected) from None
    except (OSError, ValueError) as error:
        raise InputError("FOLDER", str(folder), f"with a readable fleet.toml ({error})") from None
    fleet = content.get("fleet", {})
    algorithm = content.get("algorithm", ALGORITHM)
    if isinstance(algorithm, dict):
        algorithm = algorithm.get("name", ALGORITHM)
    try:
        job = StatusSettings(
            rounds=int(content.get("rounds", ROUNDS)),
            clients=int(content["clients"]),
            algorithm=str(algorithm),
            round_seconds=float(fleet.get("round_seconds", ROUND_SECONDS)),
            wait_for=int(fleet.get("wait_for", WAIT_FOR)),
        )
        if not 1 <= job.clients <= MOST_CLIENTS or job.rounds < 0:
            raise ValueError(f"{job.clients} clients, {job.rounds} rounds")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "with valid clients, rounds and [fleet] in its fleet.toml"
        reason = f"{type(error).__name__}: {error}"
        raise InputError("FOLDER", str(folder), f"{expected} ({reason})") from None
    return job
