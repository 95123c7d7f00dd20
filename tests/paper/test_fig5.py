from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.paper import ExperimentRequest, make
from fedpbc.paper.request import data_folders
from fedpbc.simulation.build import base_probabilities
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return make("fig5", ExperimentRequest(out=tmp_path_factory.mktemp("fig5"), seeds=[0, 1]))


def test_probabilities_are_those_of_a_run(result):
    for column in result.numbers["drawn"]:
        config = Config.from_dict({"seed": column["seed"]})
        real = base_probabilities(build_task(config), ProbabilityOptions(), column["seed"])
        assert np.maximum(column["p_before_delta"], 0.02).tolist() == real.tolist()


def test_one_or_two_classes_dominate_and_most_clients_are_below_delta(result):
    first = result.numbers["drawn"][0]
    assert sum(first["r"]) == pytest.approx(1)
    assert sum(sorted(first["r"])[-2:]) > 0.9
    p = np.array(first["p_before_delta"])
    # As docs/links.md has it.
    assert (first["below_delta"], int((p > 0.5).sum())) == (65, 7)
    assert np.maximum(p, 0.02).mean() == pytest.approx(0.11, abs=0.005)
    assert "p < δ" in result.text


def test_equal_classes_give_every_client_the_same_probability(tmp_path):
    options = ("--data", "digits", "--seeds", 3, "--set", "links.sigma=0", "--set", "clients=7")
    ran("paper", "fig5", *options, "--out", tmp_path)
    [column] = json.loads((tmp_path / "fig5.json").read_text())["drawn"]
    assert column["r"] == pytest.approx([0.1] * 10)
    assert column["p_before_delta"] == pytest.approx([0.1] * 7)
    assert (tmp_path / "fig5.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "fig5.pdf").read_bytes().startswith(b"%PDF")


def test_several_data_sets_side_by_side(tmp_path):
    result = make(
        "fig5", ExperimentRequest(out=tmp_path, quick=True, data=["digits", "fashion"], seeds=[0])
    )
    assert [column["data"] for column in result.numbers["drawn"]] == ["digits", "fashion"]
    assert "quick: nothing is left out, this figure takes seconds" in result.text.splitlines()


def test_a_data_sets_folder_is_its_subfolder_or_the_given_one(tmp_path):
    (tmp_path / "cifar10").mkdir()
    request = ExperimentRequest(out=tmp_path / "out", data_dir=tmp_path)
    assert data_folders(request, ["cifar10"]) == {"cifar10": {"dir": str(tmp_path / "cifar10")}}
    assert data_folders(request, ["svhn"]) == {"svhn": {"dir": str(tmp_path)}}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--data", "cifar"), "did you mean 'cifar10'?"),
        (
            ("--data", "cifar10", "--data-dir", "nowhere"),
            "--data-dir is 'nowhere', but should be an existing",
        ),
        (("--rounds", 5), "fig5 has no option --rounds: leave it out"),
        (("--set", "links.gamma=0.1"), "links.gamma cannot be set for fig5"),
        (("--set", "links.sigma=-1"), "links.sigma is -1"),
        (("--set", "clients=20000"), "clients is 20000, but should be at most 10000"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig5", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
