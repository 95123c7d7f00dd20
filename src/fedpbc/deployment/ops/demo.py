"""A demonstration: a fleet of real processes on this machine, with links that fail on schedule."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpbc.deployment.log_lines import LineFormatter
from fedpbc.deployment.ops.check import read_timetable
from fedpbc.deployment.ops.flower_check import require_flower
from fedpbc.deployment.ops.local_fleet import LocalFleet
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.settings import FleetSettings
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.build import build_task
from fedpbc.parallel import usable_cores
from fedpbc.simulation.build import draw_timetable
from fedpbc.storage.directories import make_directory
from fedpbc.storage.manifest import read_manifest, write_manifest
from fedpbc.storage.removal import remove_empty_folder, remove_tree

__all__ = [
    "Demo",
    "DemoPlan",
    "check_folder",
    "describe_cuts",
    "describe_links",
    "plan_demo",
]

LOG = logging.getLogger("fedpbc.deployment")
KIND, REPLACED = "fleet demo", ".replaced"
"""What a demo's manifest says it is of; and the folder of the demo that it replaces."""
LINK_SECONDS, STEP_SECONDS = 0.1, 1.0
"""How often the links and the processes are checked."""
MAX_EXITS = 3
"""A process that ends this often before the first round is over counts as failed."""
PROBABILITY = 0.6
"""Of a link to be up, by default."""
SECONDS_PER_NODE = 1.0
"""Core time per message, with a margin: training, and the processes of both sides."""


@dataclass(frozen=True)
class DemoPlan:
    """What a demo will do.

    Attributes:
        configuration: the content of ``fleet.toml``.
        links: the link scheme with its options.
        up: which clients' links are up in which round.
    """

    configuration: dict[str, Any]
    links: dict[str, Any]
    up: NDArray[np.bool_]


def plan_demo(overrides: Mapping[str, Any], nodes: int, round_seconds: float | None) -> DemoPlan:
    """Check the options and draw the timetable of the links; nothing is written yet."""
    require_flower()
    if round_seconds is None:
        round_seconds = max(10.0, round(SECONDS_PER_NODE * nodes / usable_cores()))
    links = with_default_probability(overrides.get("links", "bernoulli"))
    configuration = {**overrides, "clients": nodes, "links": links}
    if "downlink" in configuration:
        raise InputError("leave out downlink: on a real link both directions fail together")
    fleet = configuration.get("fleet", {})
    if isinstance(fleet, Mapping):
        defaults = {"round_seconds": round_seconds, "wait_for": nodes, "views_every": 1}
        configuration["fleet"] = {**defaults, **fleet}
    settings = FleetSettings.from_dict(configuration)
    if settings.fleet.app is not None:
        raise InputError("fleet.app", settings.fleet.app, "left out: a demo trains a built-in task")
    config, rounds = settings.config, settings.config.general.rounds
    timetable = draw_timetable(config.links, build_task(config), rounds, config.general.seed)
    # A real server does not know its links.
    del configuration["links"]
    return DemoPlan(configuration, dict(config.links), timetable.block(rounds, nodes))


def with_default_probability(links: Any) -> Any:
    """Add p = 0.6 to a link scheme: drawn for only a few clients, all could be near zero.

    Example:
        >>> with_default_probability("cyclic")
        {'name': 'cyclic', 'p': 0.6}
    """
    scheme = {"name": links} if isinstance(links, str) else links
    if not isinstance(scheme, Mapping) or scheme.keys() & {"p", "sigma", "delta"}:
        return scheme
    return {"name": "bernoulli", "p": PROBABILITY, **scheme}


def check_folder(path: Path, *, overwrite: bool) -> None:
    """Check that a demo can be written there; with ``overwrite``, in the place of an older one."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir() or read_manifest(path, KIND) is None:
        raise InputError("--out", str(path), "a new folder, or that of an older demo")
    if not overwrite:
        raise InputError("--out", str(path), "a new folder; or use --overwrite")


class Replacement:
    """An older demo, put aside until the new one's first round is done; else it comes back.

    Only what the older demo's manifest lists is touched.
    """

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder = folder
        self._names = ["server", *(f"device-{client}" for client in range(clients)), "logs"]
        self._older = list(read_manifest(folder, KIND) or ())
        self._aside = folder / REPLACED
        if self._aside.is_dir():
            # A demo that was killed: what it replaced is still there.
            self._remove(self._older)
        elif self._older:
            self._move_aside()
        try:
            make_directory(folder)
            write_manifest(folder, KIND, sorted({*self._names, *self._older, REPLACED}))
        except BaseException:
            self._put_back()
            raise

    def _move_aside(self) -> None:
        self._aside.mkdir()
        try:
            for name in self._older:
                if (self.folder / name).is_dir() and name != REPLACED:
                    (self.folder / name).rename(self._aside / name)
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        """Undo :meth:`_move_aside`, before anything of the new demo is there."""
        if self._aside.is_dir():
            for path in self._aside.iterdir():
                path.rename(self.folder / path.name)
            remove_empty_folder(self._aside)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.folder / name
            if name != REPLACED and path.is_dir() and not path.is_symlink():
                remove_tree(path)

    def finish(self, *, succeeded: bool) -> None:
        """Remove the older demo, or put it back."""
        if self._aside.is_dir():
            if not succeeded:
                self._remove(self._names)
                self._put_back()
                self._names = self._older
            else:
                remove_tree(self._aside)
        elif not succeeded:
            return  # The files of a demo that failed show why.
        write_manifest(self.folder, KIND, self._names)


class Demo:
    """Runs a local fleet and cuts its links: each round's row when that round begins."""

    def __init__(self, folder: Path, plan: DemoPlan, *, insecure: bool = False) -> None:
        """Write folders and keys; nothing is started yet."""
        self.plan = plan
        data = plan.configuration.get("data", {})
        data_dir = data.get("dir") if isinstance(data, Mapping) else None
        options = {} if data_dir is None else {"data_dir": str(Path(data_dir).resolve())}
        self._replacement = Replacement(folder, int(plan.configuration["clients"]))
        try:
            self.fleet = LocalFleet(
                folder, plan.configuration, insecure=insecure, device_options=options
            )
        except BaseException:
            self._replacement.finish(succeeded=False)
            raise
        self.folder, self.server = folder, self.fleet.server
        # Log messages go to a file, because they would break the table on the terminal.
        self._handler = logging.FileHandler(
            folder / "logs" / "demo.log", encoding="utf-8", delay=True
        )
        self._handler.setFormatter(LineFormatter())
        LOG.addHandler(self._handler)
        LOG.propagate = False
        self.is_done = False
        self._log = FleetLog(self.server)
        self._applied_round = -1
        self._last_step = -STEP_SECONDS
        self._start_deadline = time.monotonic() + 120.0 + 10.0 * self.fleet.clients

    def start(self) -> None:
        """Start all processes."""
        try:
            self.fleet.start()
        except FedpbcError as error:
            raise self._start_error("server", str(error)) from error

    def links(self) -> dict[int, bool]:
        """Return whether each client's link is up in the current round."""
        # The caller may have seen the end of a round before the next row was applied.
        self._apply_links()
        return {client: proxy.is_up for client, proxy in enumerate(self.fleet.proxies)}

    def run_for(self, seconds: float) -> None:
        """Run the fleet for this long, or until the job is done."""
        deadline = time.monotonic() + seconds
        while not self.is_done and (left := deadline - time.monotonic()) > 0:
            self._apply_links()
            if time.monotonic() - self._last_step >= STEP_SECONDS:
                self.is_done = self.fleet.step()
                self._last_step = time.monotonic()
                self._check_start()
            time.sleep(min(LINK_SECONDS, left))

    def _apply_links(self) -> None:
        """Apply the current round's row once."""
        status = self._log.status()
        has_begun = status.connected == self.fleet.clients or status.rounds_done > 0
        current = status.rounds_done if has_begun else -1
        if current == self._applied_round or not 0 <= current < len(self.plan.up):
            return
        self._applied_round = current
        for proxy, is_up in zip(self.fleet.proxies, self.plan.up[current], strict=True):
            if is_up:
                proxy.restore()
            else:
                proxy.cut()

    def _check_start(self) -> None:
        """Raise an error if a process or client fails before the first round is over."""
        if self._applied_round > 0 or self.is_done:
            return
        names = ["server", "gateway"]
        for client in range(self.fleet.clients):
            names += [f"trainer-{client}", f"node-{client}"]
        for name in names:
            if self.fleet.supervisor.service(name).exits >= MAX_EXITS:
                raise self._start_error(name, f"{name} keeps exiting")
        if self._applied_round < 0 and time.monotonic() > self._start_deadline:
            missing = [c.client for c in self._log.status().clients if c.node is None]
            client = min(missing, default=0)
            raise self._start_error(f"node-{client}", f"client {client} has not connected")

    def _start_error(self, name: str, problem: str) -> FedpbcError:
        lines = [line.strip() for line in self.fleet.supervisor.service(name).last_output[-3:]]
        reason = " / ".join(line for line in lines if line)
        return FedpbcError(
            f"the fleet does not start: {problem}{f': {reason}' if reason else ''}; "
            f"see {self.folder / 'logs' / name}.log"
        )

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.fleet.close()
        finally:
            LOG.removeHandler(self._handler)
            LOG.propagate = True
            self._handler.close()
        self._replacement.finish(succeeded=self.is_done or self._applied_round > 0)


def describe_cuts(server: Path, up: NDArray[np.bool_]) -> str:
    """Compare the drawn timetable with the server's; results are exact for the latter."""
    actual = read_timetable(server, up.shape[1])
    planned = up[: len(actual)]
    late, early = int((planned & ~actual).sum()), int((~planned & actual).sum())
    text = f"links: {planned.size} client rounds, {int((~planned).sum())} of them cut"
    if late:
        text += f"; {late} answers were late although the link was up (try more --round-seconds)"
    if early:
        text += f"; {early} got through before the cut"
    return text


def describe_links(links: Mapping[str, Any]) -> str:
    """Return a link scheme and its options.

    Example:
        >>> describe_links({"name": "bernoulli", "p": 0.5})
        'bernoulli (p = 0.5)'
    """
    used = {k: v for k, v in links.items() if v is not None and k != "name"}
    options = ", ".join(f"{k} = {v}" for k, v in used.items())
    return f"{links['name']} ({options})" if options else str(links["name"])
