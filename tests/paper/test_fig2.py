from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.paper import ExperimentRequest, make
from fedpbc.paper.fig2 import BATCH, BURN_IN, P2, Estimate, simulate_trajectory
from fedpbc.simulation.build import draw_timetable
from fedpbc.tasks import Quadratic
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow

PLUGIN = """\
from fedpbc.algorithms import Algorithm, register_algorithm

@register_algorithm
class Frozen(Algorithm):
    '''Never moves.'''
    name = "frozen_for_fig2"
    def aggregate(self, round, updates):
        pass
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("fig2")
    return make("fig2", ExperimentRequest(out=out, algorithms=["fedavg"], seeds=[0], rounds=600))


def test_simulation_is_within_three_standard_errors_of_the_formula(result):
    assert [point["p2"] for point in result.numbers["points"]] == [k / 10 for k in range(11)]
    for point in result.numbers["points"]:
        p2 = point["p2"]
        assert point["formula"] == pytest.approx(150 * p2 / (p2 + 1), abs=1e-9)
        estimate = point["simulated"]["fedavg"]["server"]
        assert abs(estimate["mean"] - point["formula"]) <= 3 * estimate["standard_error"]
        # Small enough to distinguish the formula from 100p₂, say, and from 50.
        assert estimate["standard_error"] < 4
    errors = [
        p["simulated"]["fedavg"]["server"]["standard_error"] for p in result.numbers["points"]
    ]
    assert min(errors[1:]) > 0.5


def test_only_the_first_client_is_heard_if_p2_is_0(result):
    estimate = result.numbers["points"][0]["simulated"]["fedavg"]["server"]
    assert (estimate["mean"], estimate["standard_error"]) == (0, 0)


@pytest.mark.parametrize("p2", [0.0, 0.3, 1.0])
def test_the_mean_of_fedpbcs_clients_is_at_the_optimum_for_every_p2(p2):
    trajectory = simulate_trajectory({"name": "fedpbc"}, p2, seed=1, rounds=200)
    assert np.abs(trajectory["mean"] - 50).max() < 1e-9


def test_a_round_in_which_nobody_is_heard_leaves_the_model_unchanged():
    x = simulate_trajectory({"name": "fedavg"}, p2=0.2, seed=4, rounds=300)["server"]
    links = {"name": "bernoulli", "p": [0.5, 0.2]}
    timetable = draw_timetable(links, Quadratic([[0.0], [100.0]]), 300, seed=4)
    means = {(): None, (0,): 0.0, (1,): 100.0, (0, 1): 50.0}
    empty = 0
    for k in range(1, len(x)):
        active = tuple(timetable.active(BURN_IN + k).tolist())
        empty += not active
        expected = x[k - 1] if not active else means[active]
        assert x[k] == pytest.approx(expected, abs=0 if not active else 2e-3)
    assert empty > 50


def test_the_standard_error_accounts_for_dependent_rounds():
    # A chain that stays as it is in two rounds of three: the naive error would be far too small.
    random = np.random.default_rng(0)
    estimates, naive = [], []
    for _ in range(300):
        x = np.empty(40 * BATCH)
        moves = random.random(len(x)) < 1 / 3
        drawn = 100.0 * (random.random(len(x)) < 0.5)
        x[0] = drawn[0]
        for t in range(1, len(x)):
            x[t] = drawn[t] if moves[t] else x[t - 1]
        estimates.append(Estimate.of([x]))
        naive.append(x.std() / np.sqrt(len(x)))
    spread = np.std([estimate.mean for estimate in estimates])
    assert np.mean([estimate.standard_error for estimate in estimates]) == pytest.approx(
        spread, rel=0.15
    )
    assert np.mean(naive) < 0.6 * spread


def test_the_files_contain_the_command(result):
    page, png, svg, pdf, json_path = result.written
    assert "data:image/svg+xml" in page.read_text()
    assert b"<svg" in svg.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert json.loads(json_path.read_text()) == result.numbers
    command = "fedpbc paper fig2 --algorithms fedavg --seeds 0 --rounds 600"
    assert result.numbers["command"] == f"{command} --out {page.parent}"
    assert result.numbers["quick"] is None
    assert not list(json_path.parent.glob(".*"))


def test_a_plugin_algorithm_and_quick(tmp_path):
    plugin, out = tmp_path / "plugin.py", tmp_path / "out"
    plugin.write_text(PLUGIN)
    options = ("--algorithms", "frozen_for_fig2", "--plugin", plugin, "--rounds", 200)
    ended = ran("paper", "fig2", "--quick", *options, "--out", out)
    assert "quick: 200 rounds of 1 seed a point" in ended.out.splitlines()
    numbers = json.loads((out / "fig2.json").read_text())
    assert numbers["quick"]
    for point, p2 in zip(numbers["points"], P2, strict=True):
        assert point["p2"] == p2
        assert point["simulated"]["frozen_for_fig2"]["server"]["mean"] == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--rounds", 150), "rounds is 150, but should be at least 200: the first 100 are left"),
        (("--seeds", "1,1"), "seeds is '1,1', but should be different whole numbers"),
        (("--seeds", "-1"), "seeds is '-1', but should be different whole numbers"),
        (("--algorithms", "fedavgg"), "did you mean 'fedavg'?"),
        (("--data", "digits"), "fig2 has no option --data: leave it out"),
        (
            ("--set", "train.local_steps=2"),
            "train.local_steps cannot be set for fig2, which takes only engine",
        ),
        (("--engine", "fast"), "engine is 'fast', but should be one of auto"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig2", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
