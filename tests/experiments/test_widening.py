from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedpbc import FedpbcError
from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison
from fedpbc.storage import atomic
from tests.commandline import DIGITS, assert_same_run, content, fedpbc, ran, refused
from tests.small_runs import compared

pytestmark = pytest.mark.slow

SMALL = {"data": "digits", "clients": 8, "rounds": 4, "links": {"name": "bernoulli", "p": 0.5}}
SHORT = ("compare", *DIGITS, "--rounds", 4, "--set", "links.p=0.5", "--jobs", 1)


def stamps(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("seed-*/*") if path.name != ".lock")
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_seeds_and_entries_are_added_and_finished_runs_are_kept(tmp_path):
    folder = tmp_path / "out"
    ran(*SHORT, "--algorithms", "fedpbc,fedavg", "--seeds", 0, "--out", folder)
    before = stamps(folder)
    said = ran(*SHORT, "--algorithms", "fedau:cutoff=5,fedavg", "--seeds", "0-1", "--out", folder)
    assert said.out.splitlines()[0] == (
        f"{folder} holds this comparison: added fedau:cutoff=5 and seed 1; it also has fedpbc"
    )
    assert {name: stamps(folder)[name] for name in before} == before
    found = json.loads((folder / "comparison.json").read_text())
    assert found["seeds"] == [0, 1]
    labels = list(dict.fromkeys(row["label"] for row in found["rows"]))
    assert labels == ["fedpbc", "fedavg", "fedau:cutoff=5"]
    assert found["rows"][-1]["algorithm"] == "fedau"
    # The runs are those of a comparison that was made at once.
    whole = tmp_path / "whole"
    names = "fedpbc,fedavg,fedau:cutoff=5"
    ran(*SHORT, "--algorithms", names, "--seeds", "0-1", "--out", whole)
    for label in labels:
        for seed in (0, 1):
            assert_same_run(folder / label / f"seed-{seed}", whole / label / f"seed-{seed}")
    for name in ("compare.toml", "comparison.json", "table.md"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert fedpbc("verify", folder).code == 0


def test_a_ceiling_that_is_added_has_the_settings_of_the_folders_fedavg(tmp_path):
    folder, at_once = tmp_path / "out", tmp_path / "at-once"
    (tmp_path / "c.toml").write_text(
        'rounds = 4\ndata = "digits"\nclients = 8\nlinks = { name = "bernoulli", p = 0.5 }\n'
        "[algorithms.fedau]\n[algorithms.fedavg.train]\nlearning_rate = 0.5\n"
    )
    first = ("compare", tmp_path / "c.toml", "--seeds", 0, "--jobs", 1)
    ran(*first, "--out", folder)
    ran("compare", "--out", folder, "--algorithms", "mifa", "--ceiling", "--jobs", 1)
    ran(*first, "--ceiling", "--out", at_once)
    assert_same_run(folder / "ceiling/seed-0", at_once / "ceiling/seed-0")
    config = tomllib.loads((folder / "ceiling/seed-0/config.toml").read_text())
    assert (config["train"]["learning_rate"], config["links"]["name"]) == (0.5, "always")
    # Once it is there, it is taken as it is.
    ran("compare", "--out", folder, "--algorithms", "area", "--ceiling", "--jobs", 1)
    # Everything in the folder can be the baseline.
    ended = ran(
        *("compare", "--out", folder, "--algorithms", "mifa", "--jobs", 1),
        *("--baseline", "fedau", "--json"),
    )
    assert json.loads(ended.out)["paired"]["baseline"] == "fedau"


def test_what_is_not_given_is_as_in_the_folder(tmp_path):
    folder = tmp_path / "out"
    compared(folder, "fedpbc,fedavg", **SMALL)
    said = ran("compare", "--out", folder, "--seeds", "2", "--ceiling", "--jobs", 1)
    first = said.out.splitlines()[0]
    assert first.endswith("added ceiling and seed 2; it also has seed 1")
    plan = tomllib.loads((folder / "compare.toml").read_text())
    assert (plan["rounds"], plan["seeds"]) == (4, [1, 2])
    assert list(plan["algorithms"]) == ["fedpbc", "fedavg", "ceiling"]
    # The ceiling stays last, and nothing is said when nothing is new.
    ran("compare", "--out", folder, "--algorithms", "mifa", "--jobs", 1)
    plan = tomllib.loads((folder / "compare.toml").read_text())
    assert list(plan["algorithms"]) == ["fedpbc", "fedavg", "mifa", "ceiling"]
    assert "holds this comparison" not in ran("compare", "--out", folder, "--jobs", 1).out
    assert "holds this comparison" not in ran("resume", folder, "--jobs", 1).out


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("--rounds", 5), "holds another comparison (rounds is 4 there, 5 here); "),
        (("--set", "links.p=0.6"), "holds another comparison (links.p is 0.5 there, 0.6 here); "),
        (("--links", "always"), "holds another comparison (links.name is bernoulli there, always"),
        (
            ("--set", "algorithms.mifa.rescale=true"),
            "holds another 'mifa' (algorithm.rescale is false there, true here); ",
        ),
        (
            ("--set", "algorithms.fedavg.train.learning_rate=0.2"),
            "holds another 'fedavg' (train.learning_rate is 0.05 there, 0.2 here); ",
        ),
    ],
)
def test_what_differs_is_named_and_nothing_changes(tmp_path, given, line):
    folder = tmp_path / "out"
    compared(folder, "fedavg,mifa", **SMALL)
    before = content(folder)
    found = refused(fedpbc("compare", "--out", folder, "--jobs", 1, *given))
    assert found.startswith(f"out: {folder} {line}")
    assert content(folder) == before


def test_an_option_that_is_the_default_makes_no_other_entry(tmp_path):
    folder = tmp_path / "out"
    compared(folder, "fedavg,fedau", **SMALL)
    ran("compare", "--out", folder, "--set", "algorithms.fedau.cutoff=50", "--jobs", 1)


def traces(folder: Path) -> list[Path]:
    files = []
    for k in range(3):
        files.append(folder / f"links{k}.npy")
        np.save(files[-1], np.random.default_rng(k).random((4, 8)) < 0.5)
    return files


def swept(folder: Path, *files: Path, **more: object) -> None:
    own = {"links": {"name": "table"}, "sweep": {"links.file": list(map(str, files))}}
    compared(folder, "fedavg", **{**SMALL, **own, **more})


def test_files_of_entries_are_copied_and_found_again(tmp_path):
    one, two, three = traces(tmp_path)
    folder = tmp_path / "out"
    swept(folder, one, two)
    for file in (one, two):
        file.unlink()
    plan = ComparisonDirectory(folder).load_plan()
    assert list(plan.entries) == [f"fedavg:links.file=links{k}.npy" for k in (0, 1)]
    assert len(list((folder / "inputs").iterdir())) == 2
    ran("resume", folder, "--jobs", 1)
    swept(folder, three)
    assert len(list((folder / "inputs").iterdir())) == 3
    assert ComparisonDirectory(folder).verify().damage == ()
    assert len(ComparisonDirectory(folder).planned_runs()) == 3


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    files = traces(place)
    swept(place / "out", *files, seeds=[1, 2])
    return place


@pytest.mark.sampled(3)
@pytest.mark.parametrize("again", ["resume", "the same"])
@pytest.mark.parametrize("at", range(6))
def test_widening_that_is_killed_at_any_write_goes_on(tmp_path, whole, monkeypatch, at, again):
    files = traces(tmp_path)
    folder = tmp_path / "out"
    swept(folder, files[0])
    writes = 0

    def write(path: Path, *arguments: object, **options: object) -> None:
        nonlocal writes
        if writes == at:
            raise Killed
        writes += 1
        atomic.write_atomically(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedpbc.storage.manifest.write_atomically", write)
        patch.setattr("fedpbc.experiments.run_directory.write_atomically", write)
        patch.setattr("fedpbc.experiments.plan_files.write_atomically", write)
        with pytest.raises(Killed):
            swept(folder, *files, seeds=[1, 2])
    directory = ComparisonDirectory(folder)
    assert directory.verify().damage == ()
    assert len(directory.planned_runs()) in (1, 6)
    if again == "resume":
        plan = directory.load_plan()
        with directory.opened(plan) as opened:
            directory.run(opened, 1, lambda _: None)
    swept(folder, *files, seeds=[1, 2])
    assert (folder / "compare.toml").read_bytes() == (whole / "out/compare.toml").read_bytes()
    name = "fedpbc-manifest.json"
    assert (folder / name).read_bytes() == (whole / "out" / name).read_bytes()
    for run in directory.planned_runs():
        assert_same_run(run.path, whole / "out" / run.path.relative_to(folder))


def test_two_that_widen_at_once_lose_nothing(tmp_path):
    folder = tmp_path / "out"
    compared(folder, "fedavg", **SMALL)
    late = plan_comparison({**SMALL, "algorithms": ["mifa"], "seeds": [1]})
    directory = ComparisonDirectory(folder)
    early = plan_comparison({**SMALL, "algorithms": ["fedau"], "seeds": [1]})
    with (
        directory.opened(early),
        pytest.raises(FedpbcError, match="in use"),
        ComparisonDirectory(folder).opened(late),
    ):
        pass
    with ComparisonDirectory(folder).opened(late) as plan:
        assert list(plan.entries) == ["fedavg", "fedau", "mifa"]
