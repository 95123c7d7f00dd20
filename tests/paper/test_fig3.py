from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.paper import ExperimentRequest, fig3, make, quadratics
from fedpbc.paper.quadratics import links_of, targets
from fedpbc.theory import fedavg_weights
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow

# A hundred steps of 1e-4 towards a target are one of this size.
ONE_STEP = {"train": {"local_steps": 1, "learning_rate": 1 - (1 - 1e-4) ** 100}}

MINE = """\
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
    for module in (fig3, quadratics):
        monkeypatch.setattr(module, "PAIRS", ((0.1, 0.5),))


def small(out, **options):
    return ExperimentRequest(
        out=out, **{"seeds": [0], "rounds": 20, "jobs": 1, "settings": ONE_STEP} | options
    )


def by_view(made):
    return {(row["algorithm"], row["view"]): row for row in made.numbers["rows"]}


def test_targets_are_the_papers():
    found = np.stack([targets(seed) for seed in range(20)])
    assert found.shape == (20, 100, 100)
    # 2,000 numbers a client, each of deviation 0.1: five standard errors.
    assert np.abs(found.mean(axis=(0, 2)) - np.arange(1, 101) / 1000).max() < 5 * 0.1 / 2000**0.5
    assert found.var() == pytest.approx(0.01 + (np.arange(1, 101) / 1000).var(), rel=0.02)
    assert links_of((0.3, 0.9)) == [0.3] * 50 + [0.9] * 50


def test_distances_are_the_independent_trials_and_proposition_1s(tmp_path, one_pair):
    rows = by_view(make("fig3", small(tmp_path / "out", rounds=700)))
    fedavg = rows["fedavg", "server"]
    # One seed and 700 rounds instead of three and 2,500: a wider margin.
    assert rows["fedpbc", "server"]["distance"]["mean"] == pytest.approx(0.0155, rel=0.25)
    assert fedavg["distance"]["mean"] == pytest.approx(0.185, rel=0.15)
    weights = fedavg_weights([0.1] * 50 + [0.5] * 50)
    expected = np.linalg.norm((weights - 0.01) @ targets(0))
    assert fedavg["proposition_1"] == pytest.approx(expected, rel=1e-12)
    assert fedavg["distance"]["mean"] == pytest.approx(expected, rel=0.05)
    # The mean of all clients is as far on its way from 0 as if every link were up.
    left = np.linalg.norm(targets(0).mean(axis=0)) * (1 - 1e-4) ** 70_000
    assert rows["fedpbc", "mean"]["largest_at_the_end"] == pytest.approx(left, rel=1e-6)


def test_finished_runs_stay_and_the_grid_can_be_widened(tmp_path, one_pair):
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


def test_runs_of_other_options_are_not_mixed_in(tmp_path, one_pair):
    out = tmp_path / "out"
    make("fig3", small(out, algorithms=["fedavg"]))
    before = (out / "fig3.json").read_bytes()
    with pytest.raises(InputError, match=r"has other options, but should be a new folder"):
        make("fig3", small(out, algorithms=["fedavg"], rounds=30))
    assert (out / "fig3.json").read_bytes() == before
    made = make("fig3", small(out, algorithms=["fedavg"], rounds=30, overwrite=True))
    assert made.numbers["settings"]["rounds"] == 30
    assert RunDirectory(out / "0.1-0.5" / "fedavg" / "seed-0").summary()["rounds"] == 30


def test_a_failed_run_is_shown_while_the_others_go_on(tmp_path, one_pair):
    plugin, out = tmp_path / "mine.py", tmp_path / "out"
    plugin.write_text(MINE)
    options = ("--algorithms", "fedavg,exploding_for_fig3", "--plugin", plugin, "--quick")
    options += ("--rounds", 20, "--jobs", 1, "--set", "train.local_steps=1", "--out", out)
    ended = fedpbc("paper", "fig3", *options)
    assert ended.code == 2
    assert "1 failed, such as 0.1-0.5/exploding_for_fig3/seed-0: the run diverged" in ended.err
    assert ended.out.startswith("quick: 20 rounds, 1 seed\n")
    assert "failed: 0.1-0.5/exploding_for_fig3/seed-0" in ended.out
    found = json.loads((out / "fig3.json").read_text())
    assert {row["algorithm"] for row in found["rows"]} == {"fedavg"}
    assert (out / "fig3.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "fig3.pdf").read_bytes().startswith(b"%PDF")


def test_cells_side_by_side_are_the_same(tmp_path, one_pair):
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
        (("--algorithms", "mifaa"), "meant 'mifa'?"),
        (("--links", "markov"), "--links is given, but should be left out: fig3 does not have it"),
        (("--set", "links.p=0.5"), "links.p is given, but should be left out: fig3 takes only"),
        (("--set", "train.learning_rate=-1"), "train.learning_rate is -1, but should be above 0"),
        (("--engine", "fast"), "engine is 'fast', but should be one of auto"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig3", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
