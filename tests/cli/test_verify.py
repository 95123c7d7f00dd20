"""``fedpbc verify``: damage is found and named, and nothing is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commandline import DIGITS, content, fedpbc, ran, write_check


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    check = write_check(folder / "given", rounds=12, clients=3)
    check.write_text(check.read_text().replace("rounds = 60", "rounds = 12"))
    ran(
        "run",
        check,
        "--set",
        "checkpoint_every=2",
        "--evaluate-every",
        1,
        "--out",
        folder / "finished",
    )
    shutil.copytree(folder / "finished", folder / "stopped")
    (folder / "stopped" / "summary.json").unlink()
    return folder


@pytest.fixture
def runs(folder, tmp_path) -> Path:
    for name in ("finished", "stopped"):
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path


def test_intact_runs(runs):
    said = ran("verify", runs / "finished").out
    assert said == f"{runs / 'finished'}: finished, 7 files as written\n"
    assert ran("verify", runs).out.count("\n") == 2
    [first, _] = json.loads(ran("verify", runs, "--json").out)
    assert (first["state"], first["damage"]) == ("finished", [])


@pytest.mark.parametrize(
    ("run", "file"),
    [
        ("finished", "metrics.jsonl"),
        ("finished", "final.safetensors"),
        ("finished", "summary.json"),
        ("finished", "fleet.safetensors"),
        ("finished", "inputs/task-targets.npy"),
        ("stopped", "metrics.jsonl"),
        ("stopped", "inputs/links-file.npy"),
        ("stopped", "checkpoint-0000010.safetensors"),
    ],
)
@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
def test_damage_is_found_and_nothing_is_changed(runs, run, file, how):
    path = runs / run / file
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged if how == "flipped" else damaged[: len(damaged) // 2])
    if how == "deleted":
        path.unlink()
    before = content(runs)
    ended = fedpbc("verify", runs)
    if (run, how) == ("stopped", "deleted") and "checkpoint" in file:
        assert ended.code == 0  # The older one is used.
        return
    if how == "deleted" and file == "summary.json":
        assert f"{runs / run}: unfinished" in ended.out
        return
    assert ended.code == 2
    assert str(path) in ended.out
    assert "1 of 2 runs and comparisons are damaged" in ended.err
    assert ("fedpbc resume" in ended.err) == ("inputs" not in file)
    assert content(runs) == before
    if "inputs" in file:
        assert fedpbc("resume", runs / run).code == 2
        assert content(runs) == before
    else:
        assert fedpbc("resume", runs / run).code == 0
        assert fedpbc("verify", runs).code == 0


@pytest.mark.parametrize("begun", ["without a checkpoint", "whose final models are gone"])
def test_an_input_of_a_run_that_starts_over(runs, begun):
    """No checkpoint tells what the inputs were, but the manifest does."""
    run = runs / ("stopped" if "without" in begun else "finished")
    for path in [*run.glob("checkpoint-*"), run / "final.safetensors"]:
        path.unlink()
    ran("verify", runs / "stopped")
    targets = np.load(run / "inputs" / "task-targets.npy")
    np.save(run / "inputs" / "task-targets.npy", targets + 1)
    before = content(run)
    ended = fedpbc("verify", run)
    assert ended.code == 2
    assert "task-targets.npy is damaged: it" in ended.out
    assert "task-targets.npy is damaged: it" in fedpbc("resume", run).err
    assert content(run) == before


def test_a_changed_configuration_of_a_finished_run(runs):
    config = runs / "finished" / "config.toml"
    config.write_text(config.read_text().replace("local_steps = 5", "local_steps = 6"))
    assert "config.toml is damaged: it was changed since the run" in fedpbc("verify", runs).out
    assert "config.toml" in fedpbc("resume", runs / "finished").err


def test_a_summary_without_its_checksums(runs):
    path = runs / "finished" / "summary.json"
    summary = json.loads(path.read_text())
    summary.pop("checksums")
    path.write_text(json.dumps(summary))
    assert "its checksums are missing" in fedpbc("verify", runs).out
    # Earlier versions had none, and no manifest.
    (runs / "finished" / "fedpbc-manifest.json").unlink()
    assert "an earlier version wrote it" in ran("verify", runs / "finished").out


@pytest.mark.parametrize(
    "summary",
    [b"\xff\xfe{}", b"[" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b'{"seed": 1e999}', b"3"],
    ids=["not UTF-8", "open", "deep", "infinite", "number"],
)
def test_a_summary_that_is_none(runs, summary):
    file = runs / "finished" / "summary.json"
    whole = json.loads(file.read_text())
    file.write_bytes(summary)
    ended = fedpbc("verify", runs / "finished")
    assert ended.code == 2
    assert f"{file} is damaged" in ended.out
    assert len((ended.out + ended.err).splitlines()) <= 3
    # It is made again, to the same bits.
    ended = fedpbc("resume", runs / "finished")
    assert ended.code == 0
    assert "it is made again" in ended.out + ended.err
    assert json.loads(file.read_text())["views"] == whole["views"]


def test_a_folder_in_place_of_a_comparisons_file(tmp_path):
    """Resuming would fail when all runs are done."""
    words = ("compare", *DIGITS, "--rounds", 2, "--algorithms", "fedavg", "--seeds", 0)
    ran(*words, "--jobs", 1, "--out", tmp_path / "c")
    for name in ("fedpbc-manifest.json", "comparison.json"):
        path = tmp_path / "c" / name
        was = path.read_bytes()
        path.unlink()
        path.mkdir()
        line = f"{path} is damaged: it is not a regular file; remove it"
        assert line in fedpbc("verify", tmp_path / "c").out
        assert line in fedpbc("resume", tmp_path / "c").err
        path.rmdir()
        path.write_bytes(was)
    ran("verify", tmp_path / "c")


def test_something_else_in_place_of_a_comparisons_page(tmp_path):
    folder = tmp_path / "c"
    words = ("compare", *DIGITS, "--rounds", 2, "--algorithms", "fedavg", "--seeds", 0)
    ran(*words, "--jobs", 1, "--out", folder)
    (tmp_path / "mine.txt").write_text("mine")
    (folder / "report.html").unlink(missing_ok=True)
    (folder / "report.html").symlink_to(tmp_path / "mine.txt")
    ended = fedpbc("verify", folder)
    assert ended.code == 2
    assert "report.html is damaged: it is not a report, and is not replaced by one" in ended.out
    assert "which is not a report" in fedpbc("resume", folder).err
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("how", ["flipped", "another seed", "../mine"])
def test_a_damaged_plan_of_a_comparison(tmp_path, how):
    folder = tmp_path / "compared"
    options = ["--algorithms", "fedavg", "--seeds", 0, "--rounds", 2, "--jobs", 1]
    ran("compare", *DIGITS, *options, "--out", folder)
    assert ran("verify", folder).out.startswith(f"{folder}: comparison, ")
    plan = folder / "compare.toml"
    text = plan.read_text()
    changes = {
        "flipped": "#" + text[1:] + "=",
        "another seed": text.replace("0,\n]", "1,\n]"),
        "../mine": text + '[algorithms."../mine"]\n',
    }
    plan.write_text(changes[how])
    assert plan.read_text() != text
    before = content(tmp_path)
    ended = fedpbc("verify", folder)
    assert ended.code == 2
    assert f"{plan} is damaged: it is not as it was written" in ended.out
    assert "compare.toml is damaged" in fedpbc("resume", folder).err
    assert content(tmp_path) == before


SEARCH = ("--links", "bernoulli", "--set", "links.p=0.5", "--algorithms", "fedavg", "--jobs", 1)


def test_a_search_and_its_runs(tmp_path):
    folder = tmp_path / "search"
    options = ("--data", "digits", "--clients", 4, "--rounds", 4, "--candidates", 3)
    ran("tune", *options, *SEARCH, "--out", folder)
    said = ran("verify", folder).out.splitlines()
    assert said[0] == f"{folder}: search, 7 files as written"
    assert len(said) == 4
    # What a run has lost is made again with the search, which knows how far it is to go.
    run = folder / "fedavg/candidate-0/seed-0"
    (run / "metrics.jsonl").write_text("")
    ended = fedpbc("verify", folder)
    assert (ended.code, f"{run}: " in ended.out) == (2, True)
    assert ended.err.endswith(f"are damaged; 'fedpbc resume {folder}' repairs it\n")
    ended = fedpbc("resume", folder, "--jobs", 1)
    assert ended.code == 0
    assert "it is made again" in ended.err
    assert ran("verify", folder).out.splitlines() == said
    plan = folder / "tune.toml"
    plan.write_text(plan.read_text().replace("count = 3", "count = 2"))
    before = content(tmp_path)
    ended = fedpbc("verify", folder)
    assert f"{plan} is damaged: it is not as it was written" in ended.out
    assert ended.err == "fedpbc: 1 of 4 runs, comparisons and searches are damaged\n"
    assert "tune.toml is damaged" in fedpbc("resume", folder).err
    assert content(tmp_path) == before


def test_advice_with_its_parts(tmp_path):
    from fedpbc.experiments.advice.directory import AdviceDirectory
    from fedpbc.experiments.advice.request import AdviceRequest
    from fedpbc.experiments.tuning.plan import plan_tuning
    from fedpbc.experiments.tuning.request import TuningRequest

    folder = tmp_path / "advice"
    values = {"data": "digits", "clients": 4, "rounds": 4}
    directory = AdviceDirectory(folder)
    with directory.opened(AdviceRequest(values)):
        # Before its first run.
        plan = plan_tuning(values, TuningRequest(algorithms=["fedavg"], candidates=2))
        with directory.tuning.opened(plan):
            pass
    said = ran("verify", folder).out.splitlines()
    assert said == [
        f"{folder}: advice, 1 file as written",
        f"{folder / 'tune'}: search, 1 file as written",
    ]
    (folder / "tune/tune.toml").write_text("nonsense")
    assert f"{folder / 'tune/tune.toml'} is damaged" in fedpbc("verify", folder).out
    line = "tune.toml is damaged: it is not as it was written; restore it, or choose a new folder"
    assert line in fedpbc("resume", folder).err


def test_runs_of_a_comparison_that_are_not_begun(tmp_path):
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    plan = plan_comparison({"data": "digits", "clients": 4, "algorithms": ["fedavg"], "seeds": [0]})
    with ComparisonDirectory(tmp_path / "c").opened(plan):
        pass
    said = ran("verify", tmp_path / "c").out
    assert f"{tmp_path / 'c/fedavg/seed-0'}: not begun, planned" in said
