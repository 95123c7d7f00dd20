"""SIGTERM and SIGHUP end a command as Ctrl-C does: a line, a checkpoint, code 128 + n."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.commandline import COMMAND, DIGITS
from tests.processes import PATIENCE, child, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("signals_as_in_a_terminal"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]

LONG = (*DIGITS, "--rounds", 20_000, "--evaluate-every", 10)


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
