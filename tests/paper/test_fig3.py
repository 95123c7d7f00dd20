from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.paper import ExperimentRequest, fig3, make, quadratics
from fedpbc.paper.quadratics import condition_of, draw_targets
from fedpbc.theory import fedavg_weights
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow

# A hundred steps of 1e-4 towards a target are one of this size.
ONE_STEP = {"train": {"local_steps": 1, "learning_rate": 1 - (1 - 1e-4) ** 100}}

PLUGIN = """\
import torch
from fedpbc.algorithms import Algorithm, register_algorithm

@register_algorithm
class Exploding(Algorithm):
    '''Diverges.'''
    name = "exploding_for_fig3"
    def aggregate(self, round, updates):
        self.x = self.x + torch.inf
"""


@pytest.fixture
def one_pair(monkeypatch):
    monkeypatch.setattr(quadratics, "PAIRS", ((0.1, 0.5),))


def small(out, **options):
    return ExperimentRequest(
        out=out, **{"seeds": [0], "rounds": 20, "jobs": 1, "settings": ONE_STEP} | options
    )


def by_view(result):
    return {(row["algorithm"], row["view"]): row for row in result.numbers["rows"]}


def test_targets_have_the_papers_distribution():
    targets = np.stack([draw_targets(seed) for seed in range(20)])
    assert targets.shape == (20, 100, 100)
    # 2,000 numbers a client, each of deviation 0.1: five standard errors.
    assert np.abs(targets.mean(axis=(0, 2)) - np.arange(1, 101) / 1000).max() < 5 * 0.1 / 2000**0.5
    assert targets.var() == pytest.approx(0.01 + (np.arange(1, 101) / 1000).var(), rel=0.02)
    assert condition_of((0.3, 0.9), 10).changes["links"]["p"] == [0.3] * 50 + [0.9] * 50


def test_distances_agree_with_the_independent_trial_and_proposition_1(tmp_path, one_pair):
    rows = by_view(make("fig3", small(tmp_path / "out", rounds=700)))
    fedavg = rows["fedavg", "server"]
    # One seed and 700 rounds instead of three and 2,500: a wider margin.
    assert rows["fedpbc", "server"]["distance"]["mean"] == pytest.approx(0.0155, rel=0.25)
    assert fedavg["distance"]["mean"] == pytest.approx(0.185, rel=0.15)
    weights = fedavg_weights([0.1] * 50 + [0.5] * 50)
    expected = np.linalg.norm((weights - 0.01) @ draw_targets(0))
    assert fedavg["proposition_1"] == pytest.approx(expected, rel=1e-12)
    assert fedavg["distance"]["mean"] == pytest.approx(expected, rel=0.05)
    # The mean of all clients is as far on its way from 0 as if every link were up.
    left = np.linalg.norm(draw_targets(0).mean(axis=0)) * (1 - 1e-4) ** 70_000
    assert rows["fedpbc", "mean"]["largest_at_the_end"] == pytest.approx(left, rel=1e-6)


@pytest.mark.long
def test_finished_runs_are_kept_when_the_grid_is_widened(tmp_path, one_pair):
    out = tmp_path / "out"
    first = make("fig3", small(out, algorithms=["fedavg"]))
    summary = out / "0.1-0.5" / "fedavg" / "seed-0" / "summary.json"
    before = summary.stat().st_ino, summary.stat().st_mtime_ns
    assert RunDirectory(summary.parent).finished
    wider = make("fig3", small(out, algorithms=["fedavg", "mifa"]))
    assert (summary.stat().st_ino, summary.stat().st_mtime_ns) == before
    assert by_view(wider)["fedavg", "server"] == by_view(first)["fedavg", "server"]
    assert ("mifa", "server") in by_view(wider)


def test_a_run_that_was_stopped_is_finished_to_the_same_numbers(tmp_path, one_pair):
    out = tmp_path / "out"
    first = make("fig3", small(out))
    (out / "0.1-0.5" / "fedpbc" / "seed-0" / "summary.json").unlink()
    assert make("fig3", small(out)).numbers == first.numbers


@pytest.mark.long
def test_a_folder_without_a_plan_is_continued_if_its_runs_have_the_same_options(tmp_path, one_pair):
    out = tmp_path / "out"
    first = make("fig3", small(out, algorithms=["fedavg"]))
    (out / "plan.toml").unlink()
    with pytest.raises(InputError, match=r"seed-0 was begun with other options"):
        make("fig3", small(out, algorithms=["fedavg"], rounds=30))
    assert make("fig3", small(out, algorithms=["fedavg"])).numbers == first.numbers


def test_runs_with_other_options_are_refused(tmp_path, one_pair):
    out = tmp_path / "out"
    make("fig3", small(out, algorithms=["fedavg"]))
    before = (out / "fig3.json").read_bytes()
    with pytest.raises(InputError, match=r"seed-0 was begun with other options: use a new folder"):
        make("fig3", small(out, algorithms=["fedavg"], rounds=30))
    assert (out / "fig3.json").read_bytes() == before
    result = make("fig3", small(out, algorithms=["fedavg"], rounds=30, overwrite=True))
    assert result.numbers["settings"]["rounds"] == 30
    assert RunDirectory(out / "0.1-0.5" / "fedavg" / "seed-0").summary()["rounds"] == 30


def test_a_failed_run_is_shown_while_the_others_finish(tmp_path, one_pair):
    plugin, out = tmp_path / "plugin.py", tmp_path / "out"
    plugin.write_text(PLUGIN)
    options = ("--algorithms", "fedavg,exploding_for_fig3", "--plugin", plugin, "--quick")
    options += ("--rounds", 20, "--jobs", 1, "--set", "train.local_steps=1", "--out", out)
    ended = fedpbc("paper", "fig3", *options)
    assert ended.code == 2
    assert "1 failed, such as 0.1-0.5 · exploding_for_fig3 seed 0: the run diverged" in ended.err
    assert "quick: 20 rounds, 1 seed" in ended.out.splitlines()
    assert "FAILED: 0.1-0.5 · exploding_for_fig3 seed 0" in ended.out
    numbers = json.loads((out / "fig3.json").read_text())
    assert {row["algorithm"] for row in numbers["rows"]} == {"fedavg"}
    assert (out / "fig3.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "fig3.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_runs_in_parallel_give_the_same_numbers(tmp_path, one_pair):
    options = ("--seeds", "0,1", "--rounds", 20, "--set", "train.local_steps=1")
    one = ran("paper", "fig3", *options, "--jobs", 1, "--out", tmp_path / "a", "--json")
    two = ran("paper", "fig3", *options, "--jobs", 2, "--out", tmp_path / "b", "--json")
    without = {"command": None}
    assert json.loads(one.out) | without == json.loads(two.out) | without


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--rounds", 0), "rounds is 0, but should be at least 1"),
        (("--jobs", 0), "jobs is 0, but should be at least 1"),
        (("--algorithms", "mifaa"), "did you mean 'mifa'?"),
        (("--links", "markov"), "fig3 has no option --links: leave it out"),
        (("--set", "links.p=0.5"), "links.p cannot be set for fig3, which takes only"),
        (("--set", "train.learning_rate=-1"), "train.learning_rate is -1, but should be above 0"),
        (("--engine", "fast"), "engine is 'fast', but should be one of auto"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig3", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()


def test_a_short_run_is_not_compared_with_the_long_trial(tmp_path, one_pair):
    result = make("fig3", small(tmp_path / "out", rounds=5, settings={}))
    assert all(row["trial"] is None for row in result.numbers["rows"])
    assert "difference" not in result.text
    assert "not compared with the independent trial" in result.text
    rows = [{**row, "trial": 0.02} for row in result.numbers["rows"]]
    table = fig3.distance_table(rows, 2500, 1)
    assert table.head[4:6] == ["trial", "difference"]
