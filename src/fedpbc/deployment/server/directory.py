"""The server's folder: checkpoints, the log of rounds, who was reachable when, and the models.

fleet.toml                   what is trained and how
checkpoint-0, -1.safetensors the last two rounds' states
reports.bin                  each client's last report
server.log                   what the server app says; put aside as server.log.1 when it is large
rounds.jsonl                 a line a round: when it was, who got through, whose answer had
                             which checksum
heard.json                   for each client that was heard its node, and when that was first
timetable.csv                who got through in which round, as 0 and 1, for ``--links table``
links.csv                    the same in seconds, for ``--trace``
models/VIEW.safetensors      the models, by the names of their parameters
nodes.json                   which node is which client, by the launcher that registered its key
finished.json                after the last round
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpbc.deployment.server.ledger import Ledger
from fedpbc.errors import FedpbcError
from fedpbc.simulation.last_reports import DamagedReportsError, LastReportsOnDisk
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory
from fedpbc.storage.tensors import (
    DamagedCheckpointError,
    load_state,
    peek_state,
    save_state,
    save_tensors,
)
from fedpbc.tasks.layout import Layout

__all__ = ["ServerDirectory", "check_leftovers", "link_intervals"]

LOG = logging.getLogger("fedpbc.deployment")


class ServerDirectory:
    """One job on disk. Locked while it is open: two servers would spoil each other's rounds.

    Example:
        >>> import tempfile
        >>> with ServerDirectory(Path(tempfile.mkdtemp())) as folder:
        ...     folder.load(ledger=None) is None
        True
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.reports = LastReportsOnDisk(path / "reports.bin")
        self.lines: list[dict[str, Any]] = []
        self._heard: dict[int, dict[str, Any]] = {}
        self._heard_anew = False
        # What the two checkpoints hold of the reports: what they refer to is left alone.
        self._referred: dict[int, Any] = {}
        self._open = ExitStack()
        self._nodes = path / "nodes.json"
        self._pinned: tuple[int, dict[int, int] | None] = 0, None

    def __enter__(self) -> ServerDirectory:
        self._lock_patiently()
        self._open.callback(self.reports.close)
        return self

    def _lock_patiently(self, patience: float = 3.0) -> None:
        """Who only looks whether a server is at work here holds the lock for a moment."""
        until = time.monotonic() + patience
        while True:
            try:
                self._open.enter_context(locked_directory(self.path))
                return
            except FedpbcError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def save(self, ledger: Ledger, rest: Mapping[str, Any]) -> None:
        """Write a checkpoint over the older of the two."""
        state = {**rest, "ledger": ledger.state()}
        turn = ledger.round % 2
        save_state(checkpoints_of(self.path)[turn], state)
        self._referred[turn] = state["ledger"]["reported"]
        self.reports.spare(self._referred.values())

    def load(self, ledger: Ledger | None) -> dict[str, Any] | None:
        """Put a ledger where the newest whole checkpoint was taken; gives the rest of its state.

        None if there is no checkpoint; a FedpbcError if there are some, and none is whole, or if
        only the checkpoints are missing.
        """
        check_leftovers(self.path)
        found = {}
        for turn, path in enumerate(checkpoints_of(self.path)):
            if path.exists():
                try:
                    peeked = peek_state(path)["ledger"]
                    self._referred[turn] = peeked["reported"]
                    found[int(peeked["round"])] = path
                except (DamagedCheckpointError, KeyError, TypeError) as error:
                    LOG.warning("%s is left out: %s", path.name, error)
                    found.setdefault(-1, path)
        self.reports.spare(self._referred.values())
        for _, path in sorted(found.items(), reverse=True):
            try:
                state: dict[str, Any] = load_state(path)
                own = state.pop("ledger")
                if ledger is not None:
                    ledger.restore(own)
                self._keep_lines(own["round"])
                self._heard = read_heard(self.path / "heard.json")
                return state
            except (DamagedCheckpointError, DamagedReportsError, KeyError) as error:
                LOG.warning("%s is left out: %s", path.name, error)
        if found:
            raise FedpbcError(f"{self.path} holds no whole checkpoint: put one back, or begin anew")
        return None

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Log a round, before its checkpoint: a round that is done again is logged again."""
        self.lines.append(dict(line))
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _keep_lines(self, rounds: int) -> None:
        """Forget rounds that no checkpoint knows of."""
        place = self.path / "rounds.jsonl"
        self.lines = [line for line in read_lines(place) if line["round"] < rounds]
        write_atomically(place, "".join(json.dumps(line) + "\n" for line in self.lines))

    def hear(self, client: int, node: int) -> None:
        """A client was heard, as this node."""
        if self._heard.get(client, {}).get("node") != node:
            self._heard[client] = {"node": node, "at": round(time.time(), 3)}
            self._heard_anew = True

    def save_heard(self) -> None:
        """Write down who was heard, for people who watch; the server itself has checkpoints."""
        if self._heard_anew:
            content = json.dumps({i: self._heard[i] for i in sorted(self._heard)}, indent=1)
            write_atomically(self.path / "heard.json", content + "\n")
            self._heard_anew = False

    def save_models(self, models: Mapping[str, Tensor], layout: Layout, rounds: int) -> None:
        """The models of the views, each as plain PyTorch loads it."""
        place = self.path / "models"
        place.mkdir(exist_ok=True)
        for view, model in models.items():
            named = {name: part.clone() for name, part in layout.named(model).items()}
            about = {"view": view, "rounds": str(rounds)}
            save_tensors(place / f"{view}.safetensors", named, about)

    @property
    def has_nodes(self) -> bool:
        """Whether a launcher has said whether there are keys."""
        return self._nodes.exists()

    def pinned(self) -> dict[int, int] | None:
        """The client of each node whose key is registered; None where there are no keys."""
        try:
            status = self._nodes.stat()
            if status.st_mtime_ns != self._pinned[0]:
                told = json.loads(self._nodes.read_text(encoding="utf-8"))["pinned"]
                pinned = None if told is None else {int(n): int(c) for n, c in told.items()}
                self._pinned = status.st_mtime_ns, pinned
        except FileNotFoundError:
            return None
        return self._pinned[1]

    def finish(self, about: Mapping[str, Any]) -> None:
        """Say that all rounds are done and everything is written."""
        write_atomically(self.path / "finished.json", json.dumps(about) + "\n")

    def save_links(self, clients: int, round_seconds: float) -> None:
        """Who was reachable when: as a timetable, and in seconds."""
        rows = []
        for line in self.lines:
            active = set(line["active"])
            rows.append(",".join("1" if i in active else "0" for i in range(clients)) + "\n")
        write_atomically(self.path / "timetable.csv", "".join(rows))
        found = link_intervals([line["active"] for line in self.lines], clients, round_seconds)
        head = f"# round_seconds = {round_seconds!r}\nclient,online_from_s,online_until_s\n"
        # No digits that only rounding made.
        listed = (f"{i},{a:.12g},{b:.12g}\n" for i, a, b in found)
        write_atomically(self.path / "links.csv", head + "".join(listed))


def checkpoints_of(folder: Path) -> list[Path]:
    """Where a job's two checkpoints are."""
    return [folder / f"checkpoint-{k}.safetensors" for k in (0, 1)]


def check_leftovers(folder: Path) -> None:
    """A FedpbcError if a job's checkpoints were deleted and its log was not.

    A new job would count the old one's rounds as its own.
    """
    if any(path.exists() for path in checkpoints_of(folder)):
        return
    left = [name for name in ("rounds.jsonl", "finished.json") if (folder / name).exists()]
    if left:
        raise FedpbcError(
            f"{folder} has no checkpoint, but {' and '.join(left)} of a job that ran there: "
            "take a new folder, or delete "
            f"{'that' if len(left) == 1 else 'those'}, too"
        )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; a last one that was not finished is left out."""
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                return
            yield line


def read_heard(path: Path) -> dict[int, dict[str, Any]]:
    """Who was heard before this process; nothing if that cannot be read."""
    try:
        return {int(i): dict(one) for i, one in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def link_intervals(
    rounds: Sequence[Sequence[int]], clients: int, round_seconds: float
) -> list[tuple[int, float, float]]:
    """When each client was reachable: client, from, until, in seconds since the job began.

    All that is known is who answered in which round. Every round counts as ``round_seconds`` long,
    also one that ended early because all had answered, and a link as up from the middle of a round
    with an answer to the middle of the next. So the scheme ``trace`` finds again exactly those
    rounds, and after the last begins again with the first. Each client ends with an empty
    interval: that tells how long the log is, and that the client exists, heard or not.

    Example:
        >>> link_intervals([[0], [0], []], clients=2, round_seconds=10.0)
        [(0, 5.0, 25.0), (0, 30.0, 30.0), (1, 30.0, 30.0)]
    """
    end = len(rounds) * round_seconds
    found: list[list[tuple[float, float]]] = [[] for _ in range(clients)]
    for t, active in enumerate(rounds):
        a, b = (t + 0.5) * round_seconds, (t + 1.5) * round_seconds
        for client in active:
            own = found[client]
            own.append((own.pop()[0], b) if own and own[-1][1] == a else (a, b))
    for own in found:
        if own and own[-1][1] > end:
            # The last round's second half is where the log begins again.
            own[-1] = own[-1][0], end
            own.insert(0, (0.0, 0.5 * round_seconds))
        own.append((end, end))
    return [(client, a, b) for client, own in enumerate(found) for a, b in own]
