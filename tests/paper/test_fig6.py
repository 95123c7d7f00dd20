from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.links import Setting, Timetable
from fedpbc.paper import ExperimentRequest, make
from fedpbc.paper.fig6 import LINKS, PROBABILITIES, activity, longest
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow

MINE = """\
import numpy as np
from fedpbc.links import link_scheme

@link_scheme
def every_third_for_fig6(setting, *, first: int = 0):
    '''Up in every third round.'''
    for t in range(setting.rounds):
        yield np.full(setting.clients, t % 3 == first)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make("fig6", ExperimentRequest(out=tmp_path_factory.mktemp("fig6")))


def links_in(made, scheme):
    [one] = [one for one in made.numbers["schemes"] if one["scheme"] == scheme]
    return np.array([[int(c) for c in row] for row in one["up"][0]], dtype=bool).T


def test_all_six_schemes_over_80_rounds_and_400_of_the_cyclic(made):
    assert [one["scheme"] for one in made.numbers["schemes"]] == list(LINKS)
    rounds = [one["rounds"] for one in made.numbers["schemes"]]
    assert rounds == [80, 80, 80, 80, 400, 400]


@pytest.mark.parametrize("scheme", LINKS)
def test_links_are_those_of_the_scheme(made, scheme):
    found = links_in(made, scheme)
    setting = Setting(0, 4, len(found), np.array(PROBABILITIES))
    timetable = Timetable.draw(scheme, setting)
    assert found.tolist() == [timetable.up(t).tolist() for t in range(len(found))]


def test_patterns_can_be_told_apart(made):
    cyclic, reset = links_in(made, "cyclic"), links_in(made, "cyclic_reset")
    assert (cyclic[:100] == cyclic[100:200]).all()
    assert not (reset[:100] == reset[100:200]).all()
    assert cyclic[:100].sum(axis=0).tolist() == [1, 10, 50, 90]
    # Chains stay as they are for long, independent links do not; p = 0.5.
    stays = {name: longest(links_in(made, name)[:, 2], True) for name in ("markov", "bernoulli")}
    assert stays["markov"] > 2 * stays["bernoulli"]


def test_probabilities_vary_where_the_scheme_says_so():
    assert {name: activity(name, [0], None, {}).varies for name in LINKS} == {
        "bernoulli": False,
        "bernoulli_varying": True,
        "markov": False,
        "markov_varying": True,
        "cyclic": False,
        "cyclic_reset": False,
    }


def test_the_longest_stretch_by_hand():
    up = np.array([1, 1, 0, 1, 0, 0, 0], dtype=bool)
    assert (longest(up, True), longest(up, False)) == (2, 3)
    assert longest(np.ones(3, dtype=bool), False) == 0


def test_a_scheme_of_ones_own_with_options_and_seeds(tmp_path):
    plugin, out = tmp_path / "mine.py", tmp_path / "out"
    plugin.write_text(MINE)
    options = ("--links", "every_third_for_fig6,markov", "--plugin", plugin, "--rounds", 9)
    ended = ran(
        *("paper", "fig6", *options, "--quick", "--seeds", "0,1"),
        *("--set", "links.first=1", "--out", out),
    )
    assert ended.out.startswith("quick: nothing is left out")
    own, markov = json.loads((out / "fig6.json").read_text())["schemes"]
    assert own["up"] == [["010010010"] * 4] * 2
    assert len(markov["up"]) == 2
    assert (out / "fig6.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "fig6.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--links", "bernouli"), "meant 'bernoulli'?"),
        (("--links", "markov,markov"), "should be different names"),
        (("--links", "table"), "links.file is missing"),
        (("--rounds", 0), "rounds is 0, but should be at least 1"),
        (("--set", "links.gama=0.2"), "links.gama is unknown"),
        (("--set", "links.gamma=2"), "links.gamma is 2"),
        (("--algorithms", "fedavg"), "--algorithms is given, but should be left out"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig6", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
