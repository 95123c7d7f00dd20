from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.comparison import Spread
from fedpbc.experiments.run_result import RunResult
from fedpbc.experiments.sweep import DivergedReason
from fedpbc.paper import ExperimentRequest
from fedpbc.paper.catalog import default_folder
from fedpbc.paper.grid import SweepResult
from fedpbc.paper.heatmap import GridPoint
from fedpbc.paper.plan import PaperCondition, PlannedRun
from fedpbc.paper.step_sizes import find_step_sizes, read_chosen
from fedpbc.paper.tune import (
    GLOBAL_LEARNING_RATES,
    LEARNING_RATES,
    best_point,
    grid_points,
    next_command,
    with_step_sizes,
    without_divergence,
    write_chosen,
)
from tests.commandline import fedpbc, ran, refused
from tests.small_grids import line, numbers

pytestmark = pytest.mark.slow

BASE = PaperCondition(("digits", "bernoulli_varying"), "digits", "bernoulli_varying", 500)


def sweep_of(*cells: tuple[float, float, RunResult]) -> SweepResult:
    runs = [
        (PlannedRun(with_step_sizes(BASE, eta, eta_g), cell.algorithm, cell.seed, {}), cell)
        for eta, eta_g, cell in cells
    ]
    return SweepResult(Path("nowhere"), runs)


def test_the_grids_are_the_papers():
    assert sorted(LEARNING_RATES) == [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1]
    assert sorted(GLOBAL_LEARNING_RATES) == [0.5, 1, 1.5, 5, 10, 50]


@pytest.mark.parametrize(
    ("chosen", "quick", "command"),
    [
        ("paper/tune/chosen.toml", False, "fedpbc paper table1"),
        ("paper/tune-quick/chosen.toml", True, "fedpbc paper table1 --quick"),
        # In any other folder the table would not find it.
        ("mine/chosen.toml", False, "fedpbc paper table1 --tuned mine/chosen.toml"),
        ("my tune/chosen.toml", True, "fedpbc paper table1 --quick --tuned 'my tune/chosen.toml'"),
        (
            "paper/tune/chosen.toml",
            True,
            "fedpbc paper table1 --quick --tuned paper/tune/chosen.toml",
        ),
    ],
)
def test_the_next_command_uses_the_choice(chosen, quick, command):
    said = next_command(Path(chosen), quick)
    assert said.startswith(f"`{command}` uses ")
    options = shlex.split(command)[3:]
    given = options[options.index("--tuned") + 1] if "--tuned" in options else None
    # What the command would look for is the file.
    assert Path(given or default_folder("tune", quick) / "chosen.toml") == Path(chosen)


def test_the_best_in_the_papers_view_is_chosen():
    sweep = sweep_of(
        # By the server's own model the first would be better.
        (0.1, 1.0, RunResult("fedpbc", 0, 9, [line(500, server=0.9, mean=0.3)])),
        (0.05, 1.0, RunResult("fedpbc", 0, 9, [line(500, server=0.1, mean=0.4)])),
        (0.05, 50.0, RunResult("fedpbc", 0, failure=DivergedReason("it diverged"))),
        (0.01, 1.0, RunResult("fedavg", 0, 9, [line(500, server=0.8)])),
    )
    points = grid_points(sweep, BASE, "fedpbc")
    assert [p.test and p.test.mean for p in points[:3]] == [0.3, 0.4, None]
    assert [p.diverged for p in points[:3]] == [False, False, True]
    best = best_point(points)
    assert best is not None
    assert (best.learning_rate, best.global_learning_rate) == (0.05, 1.0)


def test_a_pair_with_which_one_seed_diverges_is_worst():
    sweep = sweep_of(
        (0.1, 1.0, RunResult("fedavg", 0, 9, [line(500, server=0.9)])),
        (0.1, 1.0, RunResult("fedavg", 1, failure=DivergedReason("it diverged"))),
        (0.01, 1.0, RunResult("fedavg", 0, 9, [line(500, server=0.2)])),
        (0.01, 1.0, RunResult("fedavg", 1, 9, [line(500, server=0.2)])),
    )
    best = best_point(grid_points(sweep, BASE, "fedavg"))
    assert best is not None
    assert best.learning_rate == 0.01


def test_if_all_diverge_nothing_is_chosen_and_other_choices_are_kept(tmp_path):
    path = tmp_path / "chosen.toml"
    first = {("svhn", "mifa"): [GridPoint(0.1, 1.5, Spread.of([0.5]))]}
    write_chosen(path, BASE, [0], first, ExperimentRequest(out=tmp_path))
    second = {("digits", "mifa"): [GridPoint(0.1, 50.0, None, diverged=True)]}
    write_chosen(path, BASE, [0], second, ExperimentRequest(out=tmp_path))
    chosen, rounds = read_chosen(path)
    assert chosen == {("svhn", "mifa"): {"learning_rate": 0.1, "global_learning_rate": 1.5}}
    assert rounds == 500


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "tune-quick"
    small = ("--quick", "--data", "digits", "--set", "clients=8", "--rounds", 4)
    wild = ("--set", "train.local_steps=2")
    few = (*small, *wild, "--algorithms", "fedavg,mifa", "--jobs", 1, "--out", out)
    return ran("paper", "tune", *few), out


def test_the_choice_is_what_the_runs_say(tuned):
    ended, out = tuned
    found = numbers(out, "tune")
    chosen = tomllib.loads((out / "chosen.toml").read_text())
    assert chosen["rounds"] == 4
    assert chosen["links"] == "bernoulli_varying"
    for name in ("fedavg", "mifa"):
        tried = [t for t in found["tried"] if t["algorithm"] == name]
        assert len(tried) == 9
        best = max(tried, key=lambda t: t["test"]["mean"])
        mine = chosen["chosen"]["digits"][name]
        assert mine["learning_rate"] == best["learning_rate"]
        assert mine["global_learning_rate"] == best["global_learning_rate"]
        assert mine["test_percent"] == pytest.approx(100 * best["test"]["mean"], abs=0.006)
    assert "QUICK" in ended.out
    assert "Tuned on bernoulli_varying" in ended.out
    assert (out / "tune-digits.png").is_file()
    assert (out / "tune-digits.pdf").is_file()


def test_the_tables_use_it_and_say_so(tuned):
    _, out = tuned
    chosen = read_chosen(out / "chosen.toml")[0]["digits", "mifa"]
    small = ("--quick", "--data", "digits", "--set", "clients=8", "--rounds", 2)
    few = (*small, "--links", "bernoulli", "--algorithms", "mifa,fedau", "--seeds", "0")
    table = out.parent / "table1-quick"
    ended = ran("paper", "table1", *few, "--jobs", 1, "--out", table)
    assert f"the step sizes that 'tune' chose after 4 rounds ({out}/chosen.toml)" in ended.out
    assert "the default ones for fedau on digits" in ended.out
    config = table / "digits/bernoulli/mifa/seed-0/config.toml"
    train = tomllib.loads(config.read_text())["train"]
    assert {key: train[key] for key in chosen} == chosen
    # Without them these would be other runs.
    line = refused(fedpbc("paper", "table1", *few, "--tuned", "no", "--out", table))
    assert "mifa/seed-0 was begun with other options" in line
    ended = ran(
        "paper", "table1", *few, "--tuned", "no", "--jobs", 1, "--out", table, "--overwrite"
    )
    assert "the default step sizes" in ended.out
    assert tomllib.loads(config.read_text())["train"]["learning_rate"] == 0.05


def test_a_diverged_run_is_no_failure_of_a_search_but_another_is():
    assert (
        without_divergence(RunResult("mifa", 0, failure=DivergedReason("it diverged"))).failure
        is None
    )
    assert without_divergence(RunResult("mifa", 0, failure="it broke")).failure == "it broke"


@pytest.mark.parametrize("content", ["a = [", "rounds = 1", "chosen = 3\nrounds = 5", ""])
def test_a_file_that_tune_did_not_write_is_refused(tmp_path, content):
    (tmp_path / "chosen.toml").write_text(content)
    with pytest.raises(InputError, match="'fedpbc paper tune' wrote"):
        find_step_sizes(ExperimentRequest(out=tmp_path / "x", tuned=str(tmp_path / "chosen.toml")))


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 3000,
        b"a = " + b"[" * 3000 + b"]" * 3000,
        b"rounds = 5 # \xff\xfe",
        b"rounds = " + b"9" * 5000,
        b"rounds = 5\n[chosen.digits.mifa]\nlearning_rate = 1e999\nglobal_learning_rate = 1",
        b"rounds = 5\n[chosen.digits]\nmifa = 2020-01-01",
    ],
    ids=["open", "deep", "bytes", "digits", "infinite", "date"],
)
def test_nor_does_any_other_content_do_harm(tmp_path, content):
    file = tmp_path / "chosen.toml"
    file.write_bytes(content)
    line = refused(fedpbc("paper", "table1", "--tuned", file, "--out", tmp_path / "out"))
    assert "'fedpbc paper tune' wrote" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_nor_does_what_is_no_file(tmp_path, kind):
    file = tmp_path / "chosen.toml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file = Path("/dev/zero")
    line = refused(fedpbc("paper", "table1", "--tuned", file, "--out", tmp_path / "out"))
    assert "'fedpbc paper tune' wrote" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "train.learning_rate=0.1"), "it is what is tuned"),
        (("--links", "markov,cyclic"), "one scheme"),
    ],
)
def test_wrong_input(tmp_path, options, message):
    out = tmp_path / "out"
    line = refused(fedpbc("paper", "tune", "--data", "digits", *options, "--out", out))
    assert message in line
    assert not out.exists()
