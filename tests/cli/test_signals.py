"""SIGTERM and SIGHUP end a command as Ctrl-C does: a line, a checkpoint, code 128 + n.

Most commands are forked from a process that has imported torch.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.commandline import COMMAND, DIGITS, assert_same_run
from tests.processes import PATIENCE, child, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("signals_as_in_a_terminal"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]

LONG = (*DIGITS, "--rounds", 20_000, "--evaluate-every", 10)
SEVERAL = (*LONG, "--algorithms", "fedavg,fedpbc")
TABLE = ("--quick", "--data", "digits", "--algorithms", "fedavg", "--links", "bernoulli")
TABLE += ("--rounds", 20_000, "--set", "clients=8", "--set", "evaluate_every=10", "--jobs", 1)
FIG3 = ("--quick", "--rounds", 20_000, "--set", "evaluate_every=10", "--jobs", 1)
COMMANDS = {
    "run stacked": ("run", *LONG, "--engine", "stacked"),
    "run ray": ("run", *LONG, "--engine", "ray", "--workers", 1),
    "tune": ("tune", *SEVERAL, "--candidates", 2, "--jobs", 1),
    "compare": ("compare", *SEVERAL, "--seeds", 0, "--jobs", 1),
    "compare --jobs 2": ("compare", *SEVERAL, "--seeds", 0, "--jobs", 2),
    "paper table1": ("paper", "table1", *TABLE, "--seeds", 0),
    "paper fig3": ("paper", "fig3", *FIG3, "--algorithms", "fedavg"),
}
BOTH = (signal.SIGTERM, signal.SIGHUP)


def evaluated(folder: Path) -> bool:
    """Whether a run has written an evaluation."""
    file = folder / "metrics.jsonl"
    return file.is_file() and file.stat().st_size > 0


def processes(group: int) -> list[str]:
    """The ids of a group's processes that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = status.read_text().rsplit(")", 1)[1]
        except OSError:
            continue
        state, _, its_group, *_ = rest.split()
        if int(its_group) == group and state != "Z":
            found.append(status.parent.name)
    return found


def lines_of(err: str) -> list[str]:
    """What was said, but for how far the command was: a busy machine takes its time."""
    return [line for line in err.splitlines() if not re.match(r"fedpbc: \d+ %: ", line)]


def stopped(folder: Path) -> list[str]:
    """What an interrupted command says."""
    return [
        "fedpbc: stopping… with a checkpoint of the round reached; once more ends it at once",
        f"fedpbc: interrupted; 'fedpbc resume {folder}' continues it",
    ]


def checkpoints(folder: Path) -> list[int]:
    """After how many rounds a run has checkpoints."""
    files = folder.glob("checkpoint-*.safetensors")
    return sorted(int(file.stem.removeprefix("checkpoint-")) for file in files)


@pytest.mark.parametrize(
    ("number", "engine"), [(signal.SIGTERM, "pool"), (signal.SIGHUP, "serial")]
)
def test_a_run_is_interrupted(tmp_path, number, engine):
    run = tmp_path / "run"
    given = ["run", *LONG, "--engine", engine, "--workers", 2 if engine == "pool" else 0]
    with child([COMMAND, *given, "--out", run]) as process:
        wait_until(lambda: evaluated(run))
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=PATIENCE)
        wait_until(lambda: not processes(process.pid))
    assert (process.returncode, out) == (128 + number, "")
    assert lines_of(err) == stopped(run)
    # Of the last complete round, not only of the one before the first.
    assert checkpoints(run)[-1] > 0


def test_a_comparison_is_interrupted_with_all_its_processes(tmp_path):
    folder = tmp_path / "compared"
    given = ["compare", *LONG, "--algorithms", "fedavg,fedpbc", "--seeds", 0, "--jobs", 2]
    with child([COMMAND, *given, "--out", folder]) as process:
        wait_until(lambda: sum(map(evaluated, folder.glob("*/seed-0"))) == 2)
        # To the whole group, as a terminal or systemd sends it.
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        wait_until(lambda: not processes(process.pid))
    assert (process.returncode, out) == (143, "")
    # In particular, nothing of "leaked semaphore objects".
    assert lines_of(err) == stopped(folder)
    for run in folder.glob("*/seed-0"):
        assert checkpoints(run)[-1] > 0


def test_workers_that_still_begin_leave_ctrl_c_to_their_parent(tmp_path):
    folder = tmp_path / "compared"
    given = ["compare", *LONG, "--algorithms", "fedavg,fedpbc", "--seeds", 0, "--jobs", 2]

    def commands(group: int) -> str:
        words = [f"/proc/{pid}/cmdline" for pid in processes(group)]
        return "".join(Path(file).read_text() for file in words if Path(file).exists())

    with child([COMMAND, *given, "--out", folder]) as process:
        wait_until(lambda: "spawn_main" in commands(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        wait_until(lambda: not processes(process.pid))
    assert (process.returncode, out) == (130, "")
    assert lines_of(err) == stopped(folder)


def again(folder: Path) -> list[str]:
    """What an interrupted experiment of the paper says."""
    return [stopped(folder)[0], "fedpbc: interrupted; run the same command again to resume"]


def last_checkpoint(folder: Path) -> int:
    """The most rounds after which a run below a folder has a checkpoint."""
    return max((checkpoints(file.parent)[-1] for file in folder.rglob("checkpoint-*")), default=0)


def interrupt(server, number: signal.Signals, out: Path, *command: object) -> None:
    """Interrupt a command after its first evaluation."""
    kill = {"signal": number, "when": f"{out}/**/metrics.jsonl"}
    ended = server.run(*command, kill=kill)
    assert ended.code == 128 + number
    assert lines_of(ended.err) == (again(out) if command[0] == "paper" else stopped(out))
    # Of the last complete round, not only of the one before the first.
    assert last_checkpoint(out) > 0
    assert server.left_behind() == []


SHORT = [
    ("run stacked", signal.SIGTERM),
    ("tune", signal.SIGTERM),
    ("compare", signal.SIGHUP),
    ("paper table1", signal.SIGTERM),
    ("paper fig3", signal.SIGHUP),
]
"""Those of `make test`; `make test-faults` has all."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[] if (name, number) in SHORT else pytest.mark.faults)
        for name in COMMANDS
        for number in BOTH
    ],
)
def test_a_command_is_interrupted_after_an_evaluation(fork_server, tmp_path, name, number):
    if "ray" in name:
        pytest.importorskip("ray")
    out = tmp_path / "out"
    interrupt(fork_server, number, out, *COMMANDS[name], "--out", out)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.faults)]
)
def test_advice_is_interrupted(fork_server, tmp_path, number):
    step = "tests.faults.steps:advised"
    interrupt(fork_server, number, tmp_path / "run", step, tmp_path, 2000)


@pytest.mark.long
@pytest.mark.parametrize("number", BOTH)
def test_an_interrupted_run_is_interrupted_again_and_comes_to_the_same_bits(
    fork_server, tmp_path, number
):
    command = ["run", *DIGITS, "--rounds", 200, "--evaluate-every", 20, "--engine", "serial"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert fork_server.run(*command, "--out", whole).code == 0
    interrupt(fork_server, number, run, *command, "--out", run)
    before = checkpoints(run)[-1]
    interrupt(fork_server, number, run, "resume", run)
    assert before <= checkpoints(run)[-1] < 200
    assert fork_server.run("resume", run).code == 0
    assert_same_run(whole, run)


@pytest.mark.parametrize("number", [signal.SIGINT, *BOTH])
def test_a_fleet_is_no_longer_watched(fork_server, tmp_path, number):
    (tmp_path / "fleet.toml").write_text("clients = 3\nrounds = 6\n")
    command = ("fleet", "status", tmp_path, "--watch")
    ended = fork_server.run(*command, kill={"signal": number})
    if number == signal.SIGINT:
        # That is how one ends it.
        assert (ended.code, ended.err) == (0, "")
        assert "the fleet keeps running" in ended.out
    else:
        assert ended.code == 128 + number
        assert ended.err == "fedpbc: interrupted; nothing was written\n"


def test_what_is_ignored_from_the_start_stays_ignored(tmp_path):
    run = tmp_path / "run"
    ignored = f"trap '' HUP INT; exec {COMMAND} run {' '.join(map(str, LONG))} --out {run}"
    with child(["sh", "-c", ignored]) as process:
        wait_until(lambda: evaluated(run))
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        before = (run / "metrics.jsonl").stat().st_size
        wait_until(lambda: (run / "metrics.jsonl").stat().st_size > before)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 143


def test_a_signal_while_the_command_still_begins_is_one_line(tmp_path):
    code = (
        "import signal, sys\n"
        "sys.argv = ['fedpbc', 'list']\n"
        "class Finder:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'fedpbc.cli.compare':\n"
        "            signal.raise_signal(signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from fedpbc.cli import main\n"
        "main()"
    )
    with child([sys.executable, "-c", code]) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (143, "")
    assert err == "fedpbc: interrupted; nothing was written\n"
