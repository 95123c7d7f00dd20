"""The command line as the tests call it: in this process where it can be, else in its own."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from safetensors import safe_open

with warnings.catch_warnings():
    # Typer uses names that Click has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedpbc.cli import app as cli

PROGRESS = re.compile(r"^fedpbc: \d+ %: .*\n", re.MULTILINE)
"""How far a command is, which it says on standard error on a machine that is busy."""
COMMAND = str(Path(sys.executable).with_name("fedpbc"))
DIGITS = ("--data", "digits", "--clients", "8")

# The file of the issue, to the letter.
CHECK = """\
algorithm = "fedau"
rounds = 60
seed = 0
[task]
name = "quadratic"
targets = "targets.npy"        # float64, clients x dimensions; F_i(x) = ||x - u_i||^2 / 2, x0 = 0
[train]
local_steps = 5
learning_rate = 0.1
decay = false                  # true: the schedule of SPEC section 4
[links]
name = "table"
file = "timetable.npy"         # 0/1, rounds x clients
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``err`` is without the lines on how far it was."""

    code: int
    out: str
    err: str


def fedpbc(*arguments: object) -> Ended:
    """The command in this process; anything but SystemExit would be a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["fedpbc", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        else:
            code = 0
    return Ended(code, out.getvalue(), PROGRESS.sub("", err.getvalue()))


def process(*arguments: object, cwd: Path | None = None) -> Ended:
    """The command in a process of its own."""
    ended = subprocess.run([COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    return Ended(ended.returncode, ended.stdout, PROGRESS.sub("", ended.stderr))


def ran(*arguments: object) -> Ended:
    """The command in this process, which must end well and say nothing on standard error."""
    ended = fedpbc(*arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended


def refused(ended: Ended) -> str:
    """The one line of a command that was refused."""
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("fedpbc: ")
    assert ended.err.endswith("\n")
    assert len(ended.err.splitlines()) == 1
    return ended.err.removeprefix("fedpbc: ").removesuffix("\n")


def write_check(folder: Path, clients: int = 12, dimensions: int = 3, rounds: int = 60) -> Path:
    """The issue's file with its targets and a timetable with empty rounds and late contacts."""
    random = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "targets.npy", random.normal(size=(clients, dimensions)) * 3)
    up = (random.random((rounds, clients)) < 0.35).astype(np.int64)
    up[[0, 5, 6]] = 0
    up[: rounds * 2 // 3, 1] = 0
    up[-3, 1] = 1
    up[9] = 1
    np.save(folder / "timetable.npy", up)
    file = folder / "check.toml"
    file.write_text(CHECK)
    return file


def content(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder and the bytes in it, but for the empty lock file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


def metrics(folder: Path) -> list[dict]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder: Path) -> list[dict]:
    """The lines of a run's metrics without the seconds."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in metrics(folder)]


def final(folder: Path) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
    """A run's final models to the bit, and what is said about them."""
    with safe_open(folder / "final.safetensors", framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata(), {k: (str(a.dtype), a.tobytes()) for k, a in arrays.items()}


def assert_same_run(one: Path, other: Path) -> None:
    """The same bits: final models, and metrics and summary but for seconds and memory."""
    assert final(one) == final(other)
    assert timeless(one) == timeless(other)
    summaries = [json.loads((f / "summary.json").read_text()) for f in (one, other)]
    for summary in summaries:
        summary.pop("seconds")
        summary.pop("memory", None)
        # The metrics have the seconds, too.
        summary["checksums"].pop("metrics.jsonl")
        summary["checksums"].pop("summary.json")
    assert summaries[0] == summaries[1]
