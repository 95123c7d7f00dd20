"""Commands that write, how each is taken up again after a fault, and what it must have come to."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.commandline import DIGITS, Ended, assert_same_run
from tests.killed import Server

Command = list[object]

SMALL: Command = [*DIGITS, "--rounds", 6, "--evaluate-every", 2, "--set", "checkpoint_every=2"]
SMALL += ["--links", "bernoulli", "--set", "links.p=0.5"]
RUN: Command = ["--out", "{}/run"]
SERIAL: Command = ["run", *SMALL, "--engine", "serial", *RUN]
OTHER: Command = ["run", *SMALL, "--algorithm", "fedavg", "--rounds", 4, "--engine", "serial", *RUN]
DISK: Command = ["run", *SMALL, "--reported", "disk", "--track", "tensorboard", "--downlink"]
DISK += ["bernoulli", "--set", "downlink.p=0.6", "--engine", "stacked", *RUN]
COMPARE: Command = ["compare", *SMALL, "--algorithms", "fedpbc,fedavg", "--seeds", 0, *RUN]
TUNE: Command = ["tune", *SMALL, "--algorithms", "fedavg,fedpbc", "--candidates", 3]
TUNE += ["--rounds", 9, "--jobs", 1, *RUN]
PAPER: Command = ["--quick", "--data", "digits", "--set", "clients=8", "--rounds", 4]
PAPER += ["--seeds", 0, "--jobs", 1, *RUN]
FLEET: Command = ["fleet", "init", "{}/run", "--clients", 2, "--host", "example.org"]
FLEET += ["--data", "digits"]

VOLATILE = (".html", ".png", ".pdf", ".md")
"""Ends of names of files that have seconds or dates in them."""


@dataclass(frozen=True)
class Scenario:
    """A command that writes; ``{}`` in its arguments is the folder that has the fault."""

    command: Command
    prepare: tuple[Command, ...] = ()
    """Commands that ran before, without faults."""
    compare: Callable[[Path, Path], None] | None = None
    """Raises AssertionError unless two folders hold the same; None: their files are compared."""
    resumes: bool = True
    """Whether ``resume`` continues it; otherwise the command is repeated."""
    replaces: bool = False
    """Whether the command replaces what was there: that is complete, or as it was."""

    def arguments(self, folder: Path, command: Command | None = None) -> Command:
        command = self.command if command is None else command
        return [str(part).replace("{}", str(folder)) for part in command]

    def prepared(self, server: Server, folder: Path) -> Path:
        """The folder before the command."""
        folder.mkdir()
        for command in self.prepare:
            ended = server.run(*self.arguments(folder, command))
            assert ended.code == 0, ended.err
        return folder

    def copied(self, before: Path, folder: Path) -> Path:
        """A copy of a prepared folder."""
        shutil.copytree(before, folder)
        return folder

    def recover(self, server: Server, folder: Path) -> Ended:
        """Go on after a fault, as a person would."""
        run = folder / "run"
        plans = ("config.toml", "compare.toml", "tune.toml")
        begun = any((run / plan).is_file() for plan in plans)
        if self.resumes and begun and not self.replaces:
            return server.run("resume", run)
        return server.run(*self.arguments(folder))

    def assert_same(self, whole: Path, folder: Path) -> None:
        """Raise AssertionError unless the folder is that of an undisturbed command."""
        (self.compare or assert_same_folder)(whole, folder)

    def is_same(self, whole: Path, folder: Path) -> bool:
        """Whether the folder is the same as another."""
        try:
            self.assert_same(whole, folder)
        except AssertionError:
            return False
        return True


def assert_same_folder(whole: Path, folder: Path) -> None:
    """The same files with the same content, but for times."""
    assert names(folder) == names(whole)
    for name in names(whole):
        if (whole / name / "summary.json").is_file():
            assert_same_run(whole / name, folder / name)
        assert normal(folder, name) == normal(whole, name), name


def names(folder: Path) -> list[str]:
    """The paths below a folder; how many checkpoints a run keeps depends on where it stopped."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.name.startswith(("checkpoint-", ".lock", "events."))
    )


def normal(folder: Path, name: str) -> Any:
    """A file's content without what differs from one execution to the next."""
    path = folder / name
    if path.is_dir() or path.name.endswith(VOLATILE):
        return path.stat().st_size > 0
    if path.name in ("metrics.jsonl", "summary.json"):
        return None  # Compared by assert_same_run.
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
            return file.metadata(), arrays
    # Some files have the command in them.
    content = path.read_bytes().replace(str(folder).encode(), b"FOLDER")
    return timeless(json.loads(content)) if path.suffix == ".json" else content


def temporary_files(folder: Path) -> list[str]:
    """What is left of files that were being written, and of runs that were being replaced."""
    patterns = ("*.tmp", ".tmp*", ".next", ".previous", "*.building")
    return sorted(str(path) for pattern in patterns for path in folder.rglob(pattern))


def timeless(value: Any) -> Any:
    """A JSON value without seconds, memory and checksums of files that have seconds in them."""
    if isinstance(value, dict):
        left = ("seconds", "memory", "checksums", "took", "states")
        return {name: timeless(inner) for name, inner in value.items() if name not in left}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def same_kinds(whole: Path, folder: Path) -> None:
    """The same files, none of them empty: keys differ from one execution to the next."""
    assert names(folder) == names(whole)
    assert all(p.stat().st_size > 0 for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def job(folder: str) -> None:
    """A fleet's server and devices in this process, on a network that loses messages."""
    from fedpbc.deployment.server.server_directory import ServerDirectory
    from tests.deployment import fake_network as fake

    path = Path(folder)
    task = fake.small_task()

    def fate(client: int, round: int) -> str:
        return ("ok", "lost", "ok", "unheard")[(client + round) % 4]

    network = fake.FakeNetwork(fake.make_trainers(task, path, lazy=True), fate)
    with ServerDirectory(path / "server") as directory:
        server = fake.make_server(task, "fedpbc", directory, network, rounds=6)
        server.run()
        fake.assert_same(server, fake.simulated(task, "fedpbc", directory.lines))


def interrupted(folder: str) -> None:
    """A run that stopped after its fifth round."""
    from fedpbc import Config, start_run
    from fedpbc.experiments.execution import StoppedError, Watcher

    def stop(done: int, _: object) -> None:
        if done == 5:
            raise StoppedError("stopped")

    links = {"name": "bernoulli", "p": 0.5}
    values = {"data": "digits", "clients": 8, "rounds": 8, "links": links, "reported": "disk"}
    values |= {"evaluate_every": 2, "checkpoint_every": 2, "engine": "serial"}
    with contextlib.suppress(StoppedError):
        start_run(Config.from_dict(values), Path(folder) / "run", watcher=Watcher(on_round=stop))


def advised(folder: str) -> None:
    """Advice by a schedule that does not depend on how busy the machine is."""
    import sys

    from fedpbc.cli.app import main
    from fedpbc.experiments.advice import advise
    from fedpbc.experiments.advice.schedule import Schedule

    plan = Schedule(6, ("fedavg", "mifa"), 2, 1, 2, False, 9.0, False)
    vars(advise)["choose_schedule"] = lambda *_, **options: plan
    options = ["--minutes", 0.001, "--jobs", 1, "--out", f"{folder}/run"]
    sys.argv = [str(word) for word in ("fedpbc", "advise", *SMALL, *options)]
    main()


def strategy_job(folder: str) -> None:
    """A Flower app's job with a checkpoint and a log of its links."""
    import logging

    from flwr.supercore.task_identity import TaskIdentity

    from fedpbc.flower import FedPBC
    from tests import small_runs as small
    from tests.flower.fake_grid import app_of, cut, grid_of, record_of

    logging.getLogger("flwr").handlers[:] = [logging.NullHandler()]
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, f"_{name}", 1)
    path, task, table = Path(folder) / "run", small.quadratic(), small.random_table(seed=6)[:5]
    path.mkdir(exist_ok=True)
    files = {"checkpoint": path / "job.safetensors", "links": path / "links.csv"}
    grid = grid_of(app_of(task, cut(table)), task.clients)
    initial = record_of(task.init().numpy())
    FedPBC(fraction_evaluate=0.0, **files).start(grid, initial, num_rounds=5)


def same_job(whole: Path, folder: Path) -> None:
    """The same state of a Flower app's job, but for its name and times."""
    from fedpbc.storage.tensors import load_state

    assert names(folder) == names(whole)
    states = [load_state(each / "run" / "job.safetensors")["job"] for each in (whole, folder)]
    for key in ("server", "table", "norms", "clients"):
        first, second = (repr(state[key]) for state in states)
        assert first == second, key


HERE = "tests.faults.scenarios"
SCENARIOS = {
    "run": Scenario(SERIAL),
    "run with reports on disk": Scenario(DISK),
    "run --overwrite": Scenario([*SERIAL, "--overwrite"], (OTHER,), replaces=True),
    "resume": Scenario(["resume", "{}/run"], ([f"{HERE}:interrupted", "{}"],)),
    "compare": Scenario([*COMPARE, "--jobs", 1]),
    "compare --overwrite": Scenario(
        [*COMPARE, "--jobs", 1, "--overwrite"],
        ([*COMPARE, "--algorithms", "fedavg", "--rounds", 4, "--jobs", 1],),
        replaces=True,
    ),
    "tune": Scenario(TUNE),
    "compare, widened": Scenario(
        [*COMPARE, "--algorithms", "fedavg,fedau:cutoff=3", "--jobs", 1],
        ([*COMPARE, "--algorithms", "fedavg", "--jobs", 1],),
        resumes=False,
    ),
    "links --out": Scenario(["links", "{}/run", "--out", "{}/links.html"], (OTHER,), resumes=False),
    "report": Scenario(["report", "{}/run"], (OTHER,), resumes=False),
    "theory --out": Scenario(
        ["theory", "{}/run", "--out", "{}/lines.csv"], (OTHER,), resumes=False
    ),
    "paper fig6": Scenario(["paper", "fig6", "--quick", *RUN], resumes=False),
    "paper tune": Scenario(
        ["paper", "tune", *PAPER, "--algorithms", "fedavg", "--links", "bernoulli"], resumes=False
    ),
    "fleet init": Scenario(FLEET, compare=same_kinds, resumes=False),
    "fleet add": Scenario(
        ["fleet", "add", "{}/run", "--replace", 1], (FLEET,), same_kinds, resumes=False
    ),
    "fleet renew": Scenario(["fleet", "renew", "{}/run"], (FLEET,), same_kinds, resumes=False),
    "fleet job": Scenario([f"{HERE}:job", "{}"], compare=same_kinds, resumes=False),
    "flower job": Scenario([f"{HERE}:strategy_job", "{}"], compare=same_job, resumes=False),
}
SLOW_SCENARIOS = {
    "run pool": Scenario(["run", *SMALL, "--engine", "pool", "--workers", 2, *RUN]),
    "run ray": Scenario(["run", *SMALL, "--engine", "ray", "--workers", 1, *RUN]),
    "compare --jobs 2": Scenario([*COMPARE, "--jobs", 2]),
    "advise": Scenario([f"{HERE}:advised", "{}"], resumes=False),
}
"""With processes of their own, or long: only some of their calls are disturbed."""
