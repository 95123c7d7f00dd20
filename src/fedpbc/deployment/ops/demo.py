"""A fleet to look at: real processes on this machine, whose links are cut as a link scheme says."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.deployment.ops.check import timetable
from fedpbc.deployment.ops.launch import need_flower
from fedpbc.deployment.ops.local_fleet import LocalFleet
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.settings import FleetSettings
from fedpbc.errors import FedpbcError, InputError, Verbatim
from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.parallel import usable_cores
from fedpbc.simulation.build import draw_timetable

__all__ = ["Demo", "Planned", "plan_demo", "prepare_folder", "seconds_for"]

LOG = logging.getLogger("fedpbc.deployment")
LOOK_EVERY, TEND_EVERY = 0.1, 1.0
MOST_DEATHS = 3
"""A process that ends so often before the first round is over does not start."""
PROBABILITY = 0.6
"""Of a link to be up, unless others are asked for."""
SECONDS_A_NODE = 6.0
"""Of a core, for one message, and half of it to spare: Flower starts a process for each."""


@dataclass(frozen=True)
class Planned:
    """What a demo will do.

    Attributes:
        given: its ``fleet.toml``.
        links: the link scheme with its options.
        up: whose link is up in which round.
    """

    given: dict[str, Any]
    links: dict[str, Any]
    up: NDArray[np.bool_]


def seconds_for(nodes: int) -> float:
    """How long a round has to be for so many nodes on this machine, at least ten seconds."""
    return max(10.0, round(SECONDS_A_NODE * nodes / usable_cores()))


def plan_demo(given: Mapping[str, Any], nodes: int, round_seconds: float) -> Planned:
    """Check everything, and draw who can be reached when; nothing is written yet.

    Args:
        given: a run's configuration, as given.
        nodes: how many devices.
        round_seconds: when a round ends, if not all have answered.
    """
    need_flower()
    rest = {**given, "clients": nodes, "links": with_probability(given.get("links", "bernoulli"))}
    if "downlink" in rest:
        right = "left out: on a real link both directions fail together"
        raise InputError("downlink", Verbatim("given"), right)
    fleet = rest.get("fleet", {})
    if isinstance(fleet, Mapping):
        rest["fleet"] = {"round_seconds": round_seconds, "wait_for": nodes, "views_every": 1} | {
            **fleet
        }
    settings = FleetSettings.from_dict(rest)
    config: Config = settings.config
    if settings.fleet.app is not None:
        right = "left out: a demo trains one of our own tasks"
        raise InputError("fleet.app", settings.fleet.app, right)
    general = config.general
    task = build_task(config)
    drawn = draw_timetable(config.links, task, general.rounds, general.seed)
    # What the links are is no business of a real fleet's server.
    rest.pop("links", None)
    return Planned(rest, dict(config.links), drawn.block(general.rounds, nodes))


def with_probability(links: Any) -> Any:
    """A link scheme for a few clients: probabilities drawn for many could be next to nothing.

    Example:
        >>> with_probability("cyclic")
        {'name': 'cyclic', 'p': 0.6}
    """
    named = {"name": links} if isinstance(links, str) else links
    if not isinstance(named, Mapping) or named.keys() & {"p", "sigma", "delta"}:
        return named
    return {"name": "bernoulli", "p": PROBABILITY, **named}


def prepare_folder(path: Path, *, overwrite: bool) -> None:
    """Make sure that a demo can be written there; only an older demo is replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "server" / "fleet.toml").is_file():
        raise InputError("--out", str(path), "a new folder, or that of an older demo")
    if not overwrite:
        raise InputError("--out", str(path), "a new folder, or with --overwrite")
    shutil.rmtree(path)


class Demo:
    """Runs a fleet, and cuts its links: each round's row when that round begins."""

    def __init__(self, folder: Path, planned: Planned, *, insecure: bool = False) -> None:
        """Write folders and keys, and start nothing yet."""
        self.planned = planned
        data = planned.given.get("data", {})
        place = data.get("dir") if isinstance(data, Mapping) else None
        device = {} if place is None else {"data_dir": str(Path(place).resolve())}
        if folder.is_dir():
            folder.rmdir()
        self.fleet = LocalFleet(folder, planned.given, insecure=insecure, device=device)
        self.folder, self.server = folder, self.fleet.server
        # What is said on the way is for the log: it would tear up the table.
        self._told = logging.FileHandler(folder / "logs" / "demo.log", encoding="utf-8", delay=True)
        self._told.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        LOG.addHandler(self._told)
        LOG.propagate = False
        self.done = False
        self._log = FleetLog(self.server)
        self._applied = -1
        self._tended = -TEND_EVERY
        self._patience = time.monotonic() + 120.0 + 10.0 * self.fleet.clients

    def start(self) -> None:
        """Start all processes."""
        try:
            self.fleet.start()
        except FedpbcError as error:
            raise self._failed("superlink", str(error)) from error

    def links(self) -> dict[int, bool]:
        """Whether each client's link is up in the round under way."""
        # Whoever is told of a round that is over is told of the links of the next.
        self._apply_links()
        return {i: gate.is_open for i, gate in enumerate(self.fleet.gates)}

    def pass_time(self, seconds: float) -> None:
        """Look after the fleet for so long, or until the job is done."""
        until = time.monotonic() + seconds
        while not self.done and (left := until - time.monotonic()) > 0:
            self._apply_links()
            if time.monotonic() - self._tended >= TEND_EVERY:
                self.done = self.fleet.tend()
                self._tended = time.monotonic()
                self._look_for_failures()
            time.sleep(min(LOOK_EVERY, left))

    def _apply_links(self) -> None:
        """The row of the round under way, once."""
        found = self._log.status()
        under_way = found.done if found.heard == self.fleet.clients or found.done else -1
        if under_way == self._applied or not 0 <= under_way < len(self.planned.up):
            return
        self._applied = under_way
        for gate, up in zip(self.fleet.gates, self.planned.up[under_way], strict=True):
            if up:
                gate.mend()
            else:
                gate.cut()

    def _look_for_failures(self) -> None:
        """Before the first round is over, everything must come up."""
        if self._applied > 0 or self.done:
            return
        supervisor = self.fleet.supervisor
        for name in self._names():
            if supervisor.deaths(name) >= MOST_DEATHS:
                raise self._failed(name, f"{name} ends again and again")
        if self._applied < 0 and time.monotonic() > self._patience:
            heard = {one.client for one in self._log.status().clients if one.node is not None}
            silent = min(set(range(self.fleet.clients)) - heard, default=0)
            raise self._failed(f"supernode-{silent}", f"client {silent} was never heard")

    def _names(self) -> list[str]:
        devices = range(self.fleet.clients)
        own = [f"{kind}-{i}" for i in devices for kind in ("trainer", "supernode")]
        return ["superlink", "door", "superexec", *own]

    def _failed(self, name: str, what: str) -> FedpbcError:
        log = self.folder / "logs" / f"{name}.log"
        words = self.fleet.supervisor.last_words(name)
        said = " / ".join(line.strip() for line in words[-3:] if line.strip())
        return FedpbcError(
            f"the fleet does not start: {what}{f': {said}' if said else ''}; see {log}"
        )

    def close(self) -> None:
        """End all processes."""
        self.fleet.close()
        LOG.removeHandler(self._told)
        LOG.propagate = True
        self._told.close()

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kept_to_plan(server: Path, up: NDArray[np.bool_]) -> str:
    """How the timetable that was drawn and the one that came of it compare.

    The result is exact for the rounds as they were, on time or not.
    """
    found = timetable(server, up.shape[1])
    planned = up[: len(found)]
    late, early = int((planned & ~found).sum()), int((~planned & found).sum())
    line = f"links: {planned.size} rounds of a client, {int((~planned).sum())} of them cut"
    if late:
        line += f"; {late} answers were late with the link up (more --round-seconds would help)"
    if early:
        line += f"; {early} got through before the cut"
    return line


def named_links(links: Mapping[str, Any]) -> str:
    """A link scheme and its options, short.

    Example:
        >>> named_links({"name": "bernoulli", "p": 0.5, "sigma": 10.0})
        'bernoulli (p = 0.5)'
    """
    # Of probabilities that are given none is drawn.
    idle = {"sigma", "delta"} if links.get("p") is not None else set()
    shown = {k: v for k, v in links.items() if v is not None and k not in {"name", *idle}}
    options = ", ".join(f"{k} = {v}" for k, v in shown.items())
    return f"{links['name']} ({options})" if options else str(links["name"])
