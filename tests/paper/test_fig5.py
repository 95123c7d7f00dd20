from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.paper import ExperimentRequest, make
from fedpbc.paper.fig5 import folder_of
from fedpbc.simulation.build import ProbabilityOptions, base_probabilities
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make("fig5", ExperimentRequest(out=tmp_path_factory.mktemp("fig5"), seeds=[0, 1]))


def test_probabilities_are_those_of_a_run(made):
    for one in made.numbers["drawn"]:
        config = Config.from_dict({"seed": one["seed"]})
        real = base_probabilities(build_task(config), ProbabilityOptions(), one["seed"])
        assert np.maximum(one["p_before_delta"], 0.02).tolist() == real.tolist()


def test_one_or_two_classes_dominate_and_most_clients_are_below_delta(made):
    first = made.numbers["drawn"][0]
    assert sum(first["r"]) == pytest.approx(1)
    assert sum(sorted(first["r"])[-2:]) > 0.9
    p = np.array(first["p_before_delta"])
    # As docs/links.md has it.
    assert (first["below_delta"], int((p > 0.5).sum())) == (65, 7)
    assert np.maximum(p, 0.02).mean() == pytest.approx(0.11, abs=0.005)
    assert "p < δ" in made.text


def test_equal_classes_give_everyone_the_same(tmp_path):
    options = ("--data", "digits", "--seeds", 3, "--set", "links.sigma=0", "--set", "clients=7")
    ran("paper", "fig5", *options, "--out", tmp_path)
    [one] = json.loads((tmp_path / "fig5.json").read_text())["drawn"]
    assert one["r"] == pytest.approx([0.1] * 10)
    assert one["p_before_delta"] == pytest.approx([0.1] * 7)
    assert (tmp_path / "fig5.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "fig5.pdf").read_bytes().startswith(b"%PDF")


def test_several_data_sets_side_by_side(tmp_path):
    made = make(
        "fig5", ExperimentRequest(out=tmp_path, quick=True, data=["digits", "fashion"], seeds=[0])
    )
    assert [one["data"] for one in made.numbers["drawn"]] == ["digits", "fashion"]
    assert made.text.startswith("quick: nothing is left out")


def test_a_data_sets_folder_is_its_own_or_the_one_given(tmp_path):
    (tmp_path / "cifar10").mkdir()
    assert folder_of(tmp_path, "cifar10") == tmp_path / "cifar10"
    assert folder_of(tmp_path, "svhn") == tmp_path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--data", "cifar"), "meant 'cifar10'?"),
        (("--data", "cifar10", "--data-dir", "nowhere"), "data.dir is 'nowhere'"),
        (("--rounds", 5), "--rounds is given, but should be left out: fig5 does not have it"),
        (("--set", "links.gamma=0.1"), "links.gamma is given, but should be left out"),
        (("--set", "links.sigma=-1"), "links.sigma is -1"),
        (("--set", "clients=20000"), "clients is 20000, but should be at most 10000"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig5", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
