"""The server's folder: checkpoints, the log of rounds, link logs and models.

fleet.toml                   what is trained and how
checkpoint-0, -1.safetensors the states after the last two rounds
reports.bin                  each client's last report
server.log                   the server app's log; rotated to server.log.1 when it is large
rounds.jsonl                 one line per round: its times, who got through, and checksums of the
                             replies
heard.json                   the node of each client that has connected, and since when
timetable.csv                who got through in which round, as 0 and 1, for ``--links table``
links.csv                    the same in seconds, for ``--trace``
models/VIEW.safetensors      the models, by the names of their parameters
nodes.json                   the client of each node, from the launcher that registered its key
finished.json                written after the last round, with checksums of the results
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpbc.deployment.security.pinned_nodes import PINNED_NODES, DamagedPinsError, read_pinned
from fedpbc.deployment.server.damaged_files import move_aside
from fedpbc.deployment.server.finished_job import FINISHED, file_checksum
from fedpbc.deployment.server.round_history import RoundHistory
from fedpbc.deployment.server.round_log import ROUND_LOG, parse_round, read_rounds
from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.limits import parse_json
from fedpbc.links.link_log import link_log
from fedpbc.simulation.last_reports import DamagedReportsError, LastReportsOnDisk
from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.views import STORED_VIEWS
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.directories import locked_directory
from fedpbc.storage.files import append_line, read_own_file, refuse_links
from fedpbc.storage.tensors import (
    DamagedCheckpointError,
    load_state,
    peek_state,
    save_state,
    save_tensors,
)
from fedpbc.tasks.parameter_layout import Layout

__all__ = ["ServerDirectory", "check_leftovers"]

LOG = logging.getLogger("fedpbc.deployment")
STATE_KEY = "ledger"
"""Of the server's state in a checkpoint; the name is that of version 0.1.0."""
REPORTS = "reports.bin"
SMALL_FILE = 1 << 26
"""Bytes: more than the files have that are read whole."""


class ServerDirectory:
    """One job on disk. Locked while it is open, since two servers would corrupt it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.reports = LastReportsOnDisk(path / REPORTS)
        self.lines: list[dict[str, Any]] = []
        # Of the log's text, so that a checkpoint can tell whether it was changed.
        self._log_checksum = 0
        self._history = RoundHistory()
        # Whether what clients reported was lost, and with it the views that need it.
        self._reports_lost = False
        self._nodes: dict[int, dict[str, Any]] = {}
        self._nodes_changed = False
        # The reports that the two checkpoints refer to, which must not be overwritten.
        self._referenced: dict[int, Any] = {}
        self._exit_stack = ExitStack()
        self._pinned_path = path / PINNED_NODES
        # When the file was modified, and its content.
        self._pinned: tuple[int, dict[int, int] | None] = 0, None

    def __enter__(self) -> ServerDirectory:
        refuse_links(self.path)
        self._exit_stack.enter_context(locked_directory(self.path, patience=3.0))
        self._exit_stack.callback(self.reports.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def save(self, server: ServerState, rest: Mapping[str, Any]) -> None:
        """Write a checkpoint over the older of the two."""
        log = {"rounds": len(self.lines), "checksum": self._log_checksum}
        state = {**rest, "log": log, "history": self._history.content()}
        state |= {"reports_lost": self._reports_lost, STATE_KEY: server.state()}
        slot = server.round % 2
        save_state(checkpoints_of(self.path)[slot], state)
        self._referenced[slot] = state[STATE_KEY]["reported"]
        self.reports.protect(self._referenced.values())

    def load(self, server: ServerState) -> dict[str, Any] | None:
        """Restore a server's state from the newest valid checkpoint; returns the rest of its state.

        None if there is no checkpoint; an InputError if all are damaged, or if only the checkpoints
        are missing. If the clients' reports are damaged, the views that need them are given up.
        """
        check_leftovers(self.path)
        checkpoints = {}
        for slot, path in enumerate(checkpoints_of(self.path)):
            if path.exists():
                try:
                    summary = peek_state(path)[STATE_KEY]
                    self._referenced[slot] = summary["reported"]
                    checkpoints[int(summary["round"])] = path
                except (DamagedCheckpointError, *WRONG_STATE) as error:
                    LOG.warning("ignored %s: %s", path.name, error)
                    checkpoints.setdefault(-1, path)
        self.reports.protect(self._referenced.values())
        newest_first = [path for _, path in sorted(checkpoints.items(), reverse=True)]
        without_reports: list[Path] = []
        for candidates, has_reports in ((newest_first, True), (without_reports, False)):
            for path in candidates:
                try:
                    state = self._load(path, server, has_reports)
                except DamagedReportsError as error:
                    LOG.warning("ignored %s: %s", path.name, error)
                    without_reports.append(path)
                    continue
                except (DamagedCheckpointError, *WRONG_STATE) as error:
                    LOG.warning("ignored %s: %s", path.name, error)
                    continue
                if (name := server.algorithm.name) != state["algorithm"]:
                    raise InputError(
                        f"algorithm is {name}, but the job in {self.path} started with "
                        f"{state['algorithm']}"
                    )
                self._restore_log(server.round, state.pop("log", None), state.pop("history", None))
                self._nodes = read_nodes(self.path)
                return state
        if checkpoints:
            raise InputError(
                f"all checkpoints in {self.path} are damaged: restore one, or take a new folder"
            )
        return None

    def _load(self, path: Path, server: ServerState, has_reports: bool) -> dict[str, Any]:
        """Restore a checkpoint, with the clients' reports or without; an error if it is damaged."""
        state: dict[str, Any] = load_state(path)
        server_state = state.pop(STATE_KEY)
        if server.algorithm.name != state["algorithm"]:
            # Another algorithm cannot restore the state at all.
            return state
        is_lost = bool(state.pop("reports_lost", False))
        if not has_reports or is_lost:
            server_state = {**server_state, "reported": {}}
        elif not self.reports_exist(server_state["reported"]):
            raise DamagedReportsError("reports.bin is missing")
        server.restore(server_state)
        check_state(state)
        if server.round != server_state["round"]:
            raise ValueError("it has no round")
        if not has_reports or is_lost:
            self._give_up_reports(server, is_new=not is_lost)
        return state

    def reports_exist(self, index: Any) -> bool:
        """Whether the file is there to which a checkpoint's reports refer, if there are any."""
        slots = index.get("slots") if isinstance(index, Mapping) else None
        return not slots or (self.path / REPORTS).is_file()

    def _give_up_reports(self, server: ServerState, *, is_new: bool) -> None:
        """Go on without the views that need what each client reported last."""
        self._reports_lost = True
        lost = [view for view in server.views if view in STORED_VIEWS]
        server.views = tuple(view for view in server.views if view not in STORED_VIEWS)
        if is_new:
            self.reports.close()
            views = " and ".join(lost) or "none"
            move_aside(self.path / REPORTS, f"the job goes on without its views ({views})")
            for view in lost:
                if (model := self.path / "models" / f"{view}.safetensors").exists():
                    move_aside(model, "it is not written again")

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Log a round, before its checkpoint: a round that is repeated is logged again."""
        text = json.dumps(line)
        append_line(self.path / ROUND_LOG, text)
        self.lines.append(dict(line))
        self._history.add(line)
        self._log_checksum = zlib.crc32(f"{text}\n".encode(), self._log_checksum)

    def _restore_log(
        self, rounds: int, mark: Mapping[str, Any] | None, history: Tensor | None
    ) -> None:
        """Drop rounds after the checkpoint; if one before it is not as it was, restore the log.

        ``mark`` is what the checkpoint says about the log, and ``history`` what it knows of its
        rounds; those of older versions say nothing. Then an InputError says what is damaged.
        """
        path = self.path / ROUND_LOG
        try:
            kept = list(islice(read_rounds(self.path), rounds))
            if len(kept) < rounds:
                raise FedpbcError(f"{path} lacks rounds {len(kept)} to {rounds - 1}")
            checksum = zlib.crc32(b"".join(text for text, _ in kept))
            if mark is not None and checksum != mark["checksum"]:
                raise FedpbcError(f"{path} was changed: its checksum does not fit")
        except FedpbcError as error:
            kept = self._rounds_of(history, rounds, error)
            LOG.warning("%s", error)
            move_aside(path, f"its {len(kept)} rounds are written again, without checksums")
        text = b"".join(text for text, _ in kept)
        write_atomically(path, text)
        self.lines, self._log_checksum = [line for _, line in kept], zlib.crc32(text)
        self._history = RoundHistory(self.lines)

    def _rounds_of(
        self, history: Tensor | None, rounds: int, damage: FedpbcError
    ) -> list[tuple[bytes, dict[str, Any]]]:
        """The lines of all rounds from a checkpoint; an InputError if it has none."""
        path = self.path / ROUND_LOG
        lines = [] if history is None else RoundHistory.lines(history)
        if len(lines) != rounds or history is None:
            raise InputError(f"{damage}; restore it from a copy, or take a new folder")
        texts = [f"{json.dumps(line)}\n".encode() for line in lines]
        return [(text, parse_round(text, t, path)) for t, text in enumerate(texts)]

    def record_node(self, client: int, node: int) -> None:
        """Record that a client has connected, as this node."""
        if self._nodes.get(client, {}).get("node") != node:
            self._nodes[client] = {"node": node, "at": round(time.time(), 3)}
            self._nodes_changed = True

    def save_nodes(self) -> None:
        """Write the recorded nodes for ``fleet status``; the server itself has checkpoints."""
        if self._nodes_changed:
            content = json.dumps({i: self._nodes[i] for i in sorted(self._nodes)}, indent=1)
            write_atomically(self.path / "heard.json", content + "\n")
            self._nodes_changed = False

    def save_models(self, models: Mapping[str, Tensor], layout: Layout, rounds: int) -> None:
        """Write the models of the views, in a format that plain PyTorch loads."""
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        for view, model in models.items():
            parameters = {name: part.clone() for name, part in layout.named(model).items()}
            metadata = {"view": view, "rounds": str(rounds)}
            save_tensors(folder / f"{view}.safetensors", parameters, metadata)

    @property
    def has_nodes(self) -> bool:
        """Whether a launcher has written ``nodes.json``, with or without keys."""
        return self._pinned_path.exists()

    def pinned(self) -> dict[int, int] | None:
        """The client of each node whose key is registered; None in a fleet without keys."""
        try:
            modified = self._pinned_path.stat().st_mtime_ns
            if modified != self._pinned[0]:
                self._pinned = modified, read_pinned(self.path)
        except FileNotFoundError:
            # The last known: without keys, any node could claim to be any client.
            return self._pinned[1]
        except DamagedPinsError:
            raise FedpbcError(
                f"{self._pinned_path} is damaged: start the server again, which writes it"
            ) from None
        return self._pinned[1]

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the job as finished, after everything else is written."""
        models = sorted((self.path / "models").glob("*.safetensors"))
        names = [ROUND_LOG, "timetable.csv", "links.csv", *(f"models/{m.name}" for m in models)]
        files = {name: file_checksum(self.path / name) for name in names}
        content = json.dumps({**summary, "files": files})
        write_atomically(self.path / FINISHED, content + "\n")

    def save_links(self, clients: int, round_seconds: float) -> None:
        """Write who got through when: by round, and in seconds."""
        rounds = [set(line["active"]) for line in self.lines]
        rows = [",".join(str(int(i in active)) for i in range(clients)) for active in rounds]
        write_atomically(self.path / "timetable.csv", "".join(f"{row}\n" for row in rows))
        write_atomically(self.path / "links.csv", link_log(rounds, clients, round_seconds))


def checkpoints_of(folder: Path) -> list[Path]:
    """The paths of a job's two checkpoints."""
    return [folder / f"checkpoint-{k}.safetensors" for k in (0, 1)]


def check_leftovers(folder: Path) -> None:
    """Raise an InputError if a job's checkpoints were deleted, but its log was not.

    A new job would continue the old one's log.
    """
    if any(path.exists() for path in checkpoints_of(folder)):
        return
    left = [name for name in (ROUND_LOG, FINISHED) if (folder / name).exists()]
    if left:
        names = " and ".join(left)
        raise InputError(
            f"{folder} has no checkpoint, but {names} of an earlier job: take a new folder, or "
            f"delete {names}"
        )


WRONG_STATE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""What a state raises that is complete, but that no server wrote."""


def check_state(state: Mapping[str, Any]) -> None:
    """Raise one of WRONG_STATE unless a checkpoint has everything that a server resumes from."""
    kinds: dict[str, Any] = {"job": str, "sent": str, "seconds": float | int}
    kinds |= {"nodes": Mapping, "start_over": Mapping}
    for name, kind in kinds.items():
        if not isinstance(state[name], kind):
            raise TypeError(f"{name} is a {type(state[name]).__name__}")
    for table in ("nodes", "start_over"):
        if not all(isinstance(number, int) for pair in state[table].items() for number in pair):
            raise TypeError(f"{table} must map numbers to numbers")
    for option in ("options", "log"):
        if not isinstance(state.get(option, {}), Mapping):
            raise TypeError(f"{option} is not a table")
    if "log" in state:
        int(state["log"]["checksum"])


def read_nodes(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the nodes that an earlier process recorded; none if the file is unreadable."""
    try:
        nodes = parse_json(read_own_file(folder, "heard.json", SMALL_FILE))
        return {int(i): dict(node) for i, node in nodes.items()}
    except FileNotFoundError:
        return {}
    except (OSError, *WRONG_STATE) as error:
        # They are recorded again as they connect; only since when is lost.
        LOG.warning("ignored heard.json: %s", one_line(error))
        return {}
