"""Commands that write, how each is taken up again after a fault, and what it must have come to."""

from __future__ import annotations

import json
import shutil
import tomllib
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
ONE: Command = ["--algorithms", "fedavg", "--links", "bernoulli"]
FLEET: Command = ["fleet", "init", "{}/run", "--clients", 2, "--host", "example.org"]
FLEET += ["--data", "digits"]

VOLATILE = (".html", ".png", ".svg", ".pdf", ".md")
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
    devices: bool = False
    """Whether devices have the fault, too: what they say about it is logged, or lost on the way."""

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
    if path.name == "advise.toml":  # It has the time so far.
        return timeless(tomllib.loads(content.decode()))
    return timeless(json.loads(content)) if path.suffix == ".json" else content


def temporary_files(folder: Path) -> list[str]:
    """What is left of files that were being written, and of runs that were being replaced."""
    patterns = ("*.tmp", ".tmp*", ".next", ".previous", ".replaced", "*.building")
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


def same_job(whole: Path, folder: Path) -> None:
    """The same state of a Flower app's job, but for its name and times."""
    from fedpbc.storage.tensors import load_state

    assert names(folder) == names(whole)
    states = [load_state(each / "run" / "job.safetensors")["job"] for each in (whole, folder)]
    for key in ("server", "table", "norms", "clients"):
        first, second = (repr(state[key]) for state in states)
        assert first == second, key


def same_or_one_more(whole: Path, folder: Path) -> None:
    """The same kinds of files: who repeats 'fleet add' after its last call has one device more."""
    ours = [name for name in names(folder) if "device-3" not in name and "client-3" not in name]
    assert ours == names(whole)


STEPS = "tests.faults.steps"
EVALUATIONS = {"compare": 5, "tune": 8, "advise": 16}
"""After so many evaluations a command was stopped that is then resumed: about half-way."""


def stopped(name: str, *command: object) -> tuple[Command]:
    """What prepares a folder in which a command was stopped half-way."""
    return ([f"{STEPS}:stopped", EVALUATIONS[name], *command],)


SCENARIOS = {
    "run": Scenario(SERIAL),
    "run with reports on disk": Scenario(DISK),
    "run --overwrite": Scenario([*SERIAL, "--overwrite"], (OTHER,), replaces=True),
    "resume": Scenario(["resume", "{}/run"], ([f"{STEPS}:interrupted", "{}"],)),
    "resume a comparison": Scenario(
        ["resume", "{}/run", "--jobs", 1], stopped("compare", *COMPARE, "--jobs", 1)
    ),
    "resume a search": Scenario(["resume", "{}/run", "--jobs", 1], stopped("tune", *TUNE)),
    "compare": Scenario([*COMPARE, "--jobs", 1]),
    "compare --overwrite": Scenario(
        [*COMPARE, "--jobs", 1, "--overwrite"],
        ([*COMPARE, "--algorithms", "fedavg", "--rounds", 4, "--jobs", 1],),
        replaces=True,
    ),
    "compare, widened": Scenario(
        [*COMPARE, "--algorithms", "fedavg,fedau:cutoff=3", "--jobs", 1],
        ([*COMPARE, "--algorithms", "fedavg", "--jobs", 1],),
        resumes=False,
    ),
    "tune": Scenario(TUNE),
    "tune --overwrite": Scenario(
        [*TUNE, "--overwrite"],
        ([*TUNE, "--algorithms", "fedavg", "--candidates", 2, "--rounds", 3],),
        resumes=False,
    ),
    "links --out": Scenario(["links", "{}/run", "--out", "{}/links.html"], (OTHER,), resumes=False),
    "links --out, a picture": Scenario(
        ["links", "{}/run", "--out", "{}/links.png"], (OTHER,), resumes=False
    ),
    "links --out, as JSON": Scenario(
        ["links", "{}/run", "--out", "{}/links.json"], (OTHER,), resumes=False
    ),
    "report": Scenario(["report", "{}/run"], (OTHER,), resumes=False),
    "report --out": Scenario(
        ["report", "{}/run", "--out", "{}/page.html"], (OTHER,), resumes=False
    ),
    "theory --out": Scenario(
        ["theory", "{}/run", "--out", "{}/lines.csv"], (OTHER,), resumes=False
    ),
    "paper fig2": Scenario(
        ["paper", "fig2", "--quick", "--algorithms", "fedavg", "--rounds", 200, *RUN],
        resumes=False,
    ),
    "paper fig3": Scenario(
        ["paper", "fig3", "--quick", "--algorithms", "fedavg", "--rounds", 4, "--jobs", 1, *RUN],
        resumes=False,
    ),
    "paper fig5": Scenario(
        ["paper", "fig5", "--data", "digits", "--set", "clients=8", "--seeds", 0, *RUN],
        resumes=False,
    ),
    "paper fig6": Scenario(["paper", "fig6", "--quick", *RUN], resumes=False),
    "paper table1": Scenario(["paper", "table1", *PAPER, *ONE], resumes=False),
    "paper table1 --overwrite": Scenario(
        ["paper", "table1", *PAPER, *ONE, "--overwrite"],
        (["paper", "table1", *PAPER, *ONE, "--rounds", 2],),
        resumes=False,
    ),
    "paper table2": Scenario(["paper", "table2", *PAPER, *ONE], resumes=False),
    "paper ablation": Scenario(["paper", "ablation", *PAPER, *ONE], resumes=False),
    "paper tune": Scenario(["paper", "tune", *PAPER, *ONE], resumes=False),
    "fleet init": Scenario(FLEET, compare=same_kinds, resumes=False),
    "fleet add": Scenario(["fleet", "add", "{}/run"], (FLEET,), same_or_one_more, resumes=False),
    "fleet add --replace": Scenario(
        ["fleet", "add", "{}/run", "--replace", 1], (FLEET,), same_kinds, resumes=False
    ),
    "fleet add, during a job": Scenario(
        ["fleet", "add", "{}/run"],
        ([f"{STEPS}:fleet_with_job", "{}"],),
        same_or_one_more,
        resumes=False,
    ),
    "fleet renew": Scenario(["fleet", "renew", "{}/run"], (FLEET,), same_kinds, resumes=False),
    "fleet accept": Scenario(
        ["fleet", "accept", "{}/run", "--client", 1],
        ([f"{STEPS}:fleet_with_change", "{}"],),
        resumes=False,
    ),
    "fleet leave": Scenario(
        ["fleet", "leave", "{}/run", "--client", 1],
        ([f"{STEPS}:fleet_with_change", "{}"],),
        resumes=False,
    ),
    # Without its processes: theirs is "fleet job".
    "fleet demo": Scenario([f"{STEPS}:demo", "{}"], compare=same_kinds, resumes=False),
    "fleet demo --overwrite": Scenario(
        [f"{STEPS}:demo", "{}"], ([f"{STEPS}:demo", "{}"],), same_kinds, resumes=False
    ),
    # A device whose disk is full does not answer or says so, and the server goes on without it.
    "fleet job": Scenario(
        [f"{STEPS}:job", "{}"],
        compare=same_kinds,
        resumes=False,
        devices=True,
    ),
    "flower job": Scenario([f"{STEPS}:strategy_job", "{}"], compare=same_job, resumes=False),
}
SLOW_SCENARIOS = {
    "run pool": Scenario(["run", *SMALL, "--engine", "pool", "--workers", 2, *RUN]),
    "run ray": Scenario(["run", *SMALL, "--engine", "ray", "--workers", 1, *RUN]),
    "compare --jobs 2": Scenario([*COMPARE, "--jobs", 2]),
    "advise": Scenario([f"{STEPS}:advised", "{}"], resumes=False),
    "resume advice": Scenario(
        ["resume", "{}/run", "--jobs", 1],
        ([f"{STEPS}:stopped_advice", EVALUATIONS["advise"], "{}"],),
    ),
}
"""With processes of their own, or long: only some of their calls are disturbed."""
READERS = {
    "list": "shows what there is to choose from",
    "verify": "reads a folder",
    "fleet status": "reads a server's folder",
    "fleet check": "simulates in memory what a server's folder tells",
}
"""Commands that write nothing, and why."""
ELSEWHERE = {
    "fleet server": "tests/deployment/test_machine_faults.py",
    "fleet device": "tests/deployment/test_machine_faults.py",
    "trainer": "tests/deployment/test_machine_faults.py",
}
"""Commands that run until they are stopped: where their disks fail and their machines end."""
