"""Files that vanish while a command runs, before any of its calls."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.scenarios import Scenario, temporary_files
from tests.killed import Server

STEP = int(os.environ.get("STEP", "1"))
TABLE = "digits/bernoulli/fedavg/seed-0"
MADE_AGAIN = [
    ("run", "metrics.jsonl"),
    ("run", "fleet.safetensors"),
    ("run", "checkpoint-0000002.safetensors"),
    ("run", "checkpoint-0000004.safetensors"),
    ("run", "final.safetensors"),
    ("run", ".lock"),
    ("run with reports on disk", "tracking.json"),
    ("resume", "metrics.jsonl"),
    ("compare", "fedavg/seed-0/metrics.jsonl"),
    ("tune", "fedavg/candidate-0/seed-0/metrics.jsonl"),
    ("tune", "tuning.json"),
    ("paper table1", "plan.toml"),
    ("paper table1", f"{TABLE}/metrics.jsonl"),
    ("paper table1", f"{TABLE}/final.safetensors"),
    ("paper table1", "report.html"),
    ("report", "report.html"),
    ("links --out", "../links.html"),
    ("theory --out", "../lines.csv"),
    ("fleet add --replace", "device-1/node.key"),
    ("flower job", "links.csv"),
]
"""Commands, and files that they write again when they are taken up again."""
ONLY_HERE = [
    ("run", "config.toml"),
    ("run with reports on disk", "reports.bin"),
    ("resume", "config.toml"),
    ("resume", "reports.bin"),
    ("resume", "checkpoint-0000004.safetensors"),
    ("compare", "compare.toml"),
    ("compare", "fedavg/seed-0/config.toml"),
    ("tune", "tune.toml"),
    ("advise", "advise.toml"),
    ("links --out", "config.toml"),
    ("theory --out", "config.toml"),
    ("fleet init", "server/fleet.toml"),
    ("fleet add", "server/fleet.toml"),
    ("flower job", "job.safetensors"),
]
"""Commands, and files without which they may not go on: a person is told which is missing."""


def vanish(
    server: Server,
    scenario: Scenario,
    n: int,
    file: str,
    whole: Path,
    folder: Path,
    made_again: bool,
) -> None:
    """Remove a file before the n-th call; what is lost is noticed, and can be made again."""
    fault, victim = f"vanish {n} {folder}", folder / "run" / file
    ended = server.run(*scenario.arguments(folder), fault=fault, victim=victim)
    assert "Traceback" not in ended.err
    assert ended.code in (0, 2), ended
    if ended.code == 2:
        [*_, line] = ended.err.splitlines()
        assert line.startswith("fedpbc: "), line
        assert str(folder) in line, line
    again = scenario.recover(server, folder)
    if again.code == 2 and not made_again:
        # What only this file had is lost; a person is told which one, and starts again.
        [*_, line] = again.err.splitlines()
        assert str(folder / "run") in line, line
        return
    assert again.code == 0, again
    assert "Traceback" not in again.err
    scenario.assert_same(whole, folder)
    assert not temporary_files(folder)


def sweep(server, undisturbed, tmp_path, name, file, chosen) -> None:
    made_again = (name, file) in MADE_AGAIN
    scenario, before, whole = undisturbed(name)
    counted = scenario.copied(before, tmp_path / "counted")
    fault = f"vanish 0 {counted}"
    assert server.run(*scenario.arguments(counted), fault=fault).code == 0
    complaints = []
    for n in chosen(server.calls):
        folder = scenario.copied(before, tmp_path / f"n{n}")
        try:
            vanish(server, scenario, n, file, whole, folder, made_again)
        except AssertionError as error:
            complaints.append(f"before call {n}: {str(error)[:500]}")
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [("run", "metrics.jsonl"), ("run with reports on disk", "reports.bin")],
)
def test_a_file_that_vanishes_is_noticed(faulty, undisturbed, tmp_path, name, file):
    dice = random.Random(file)
    sweep(faulty, undisturbed, tmp_path, name, file, lambda calls: [dice.randint(1, calls)])


@pytest.mark.faults
@pytest.mark.parametrize(("name", "file"), [*MADE_AGAIN, *ONLY_HERE])
def test_files_that_vanish_before_any_call(faulty, undisturbed, tmp_path, name, file):
    sweep(faulty, undisturbed, tmp_path, name, file, lambda calls: range(1, calls + 1, 7 * STEP))
