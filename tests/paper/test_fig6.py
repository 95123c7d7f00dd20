from __future__ import annotations

import json

import numpy as np
import pytest

from fedpbc.links import Setting, Timetable
from fedpbc.paper import ExperimentRequest, make
from fedpbc.paper.fig6 import PROBABILITIES, draw_links, longest_stretch
from fedpbc.paper.table1 import LINKS
from tests.commandline import fedpbc, ran, refused

pytestmark = pytest.mark.slow

PLUGIN = """\
import numpy as np
from fedpbc.links import link_scheme

@link_scheme
def every_third_for_fig6(setting, *, first: int = 0):
    '''Up in every third round.'''
    for t in range(setting.rounds):
        yield np.full(setting.clients, t % 3 == first)
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return make("fig6", ExperimentRequest(out=tmp_path_factory.mktemp("fig6")))


def links_in(result, scheme):
    [activity] = [a for a in result.numbers["schemes"] if a["scheme"] == scheme]
    return np.array([[int(c) for c in row] for row in activity["up"][0]], dtype=bool).T


def test_all_six_schemes_over_80_rounds_and_400_of_the_cyclic(result):
    assert [activity["scheme"] for activity in result.numbers["schemes"]] == list(LINKS)
    rounds = [activity["rounds"] for activity in result.numbers["schemes"]]
    assert rounds == [80, 80, 80, 80, 400, 400]


@pytest.mark.parametrize("scheme", LINKS)
def test_links_are_those_of_the_scheme(result, scheme):
    up = links_in(result, scheme)
    setting = Setting(0, 4, len(up), np.array(PROBABILITIES))
    timetable = Timetable.draw(scheme, setting)
    assert up.tolist() == [timetable.up(t).tolist() for t in range(len(up))]


def test_patterns_differ(result):
    cyclic, reset = links_in(result, "cyclic"), links_in(result, "cyclic_reset")
    assert (cyclic[:100] == cyclic[100:200]).all()
    assert not (reset[:100] == reset[100:200]).all()
    assert cyclic[:100].sum(axis=0).tolist() == [1, 10, 50, 90]
    # Chains stay as they are for long, independent links do not; p = 0.5.
    stretches = {
        name: longest_stretch(links_in(result, name)[:, 2], True)
        for name in ("markov", "bernoulli")
    }
    assert stretches["markov"] > 2 * stretches["bernoulli"]


def test_probabilities_vary_where_the_scheme_says_so():
    assert {name: draw_links(name, [0], None, {}).varies for name in LINKS} == {
        "bernoulli": False,
        "bernoulli_varying": True,
        "markov": False,
        "markov_varying": True,
        "cyclic": False,
        "cyclic_reset": False,
    }


def test_the_longest_stretch_by_hand():
    up = np.array([1, 1, 0, 1, 0, 0, 0], dtype=bool)
    assert (longest_stretch(up, True), longest_stretch(up, False)) == (2, 3)
    assert longest_stretch(np.ones(3, dtype=bool), False) == 0


def test_a_plugin_scheme_with_options_and_seeds(tmp_path):
    plugin, out = tmp_path / "plugin.py", tmp_path / "out"
    plugin.write_text(PLUGIN)
    options = ("--links", "every_third_for_fig6,markov", "--plugin", plugin, "--rounds", 9)
    ended = ran(
        *("paper", "fig6", *options, "--quick", "--seeds", "0,1"),
        *("--set", "links.first=1", "--out", out),
    )
    assert "quick: nothing is left out, this figure takes seconds" in ended.out.splitlines()
    plugin_scheme, markov = json.loads((out / "fig6.json").read_text())["schemes"]
    assert plugin_scheme["up"] == [["010010010"] * 4] * 2
    assert len(markov["up"]) == 2
    assert (out / "fig6.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "fig6.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--links", "bernouli"), "did you mean 'bernoulli'?"),
        (("--links", "markov,markov"), "should be different names"),
        (("--links", "table"), "links.file is missing"),
        (("--rounds", 0), "rounds is 0, but should be at least 1"),
        (("--set", "links.gama=0.2"), "links.gama is unknown"),
        (("--set", "links.gamma=2"), "links.gamma is 2"),
        (("--algorithms", "fedavg"), "fig6 has no option --algorithms: leave it out"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, line):
    ended = fedpbc("paper", "fig6", *options, "--out", tmp_path / "out")
    assert line in refused(ended)
    assert not (tmp_path / "out").exists()
