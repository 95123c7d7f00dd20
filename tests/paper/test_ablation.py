from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from fedpbc.experiments.configuration import Config
from fedpbc.paper.ablation import AXES, axes_of, changed
from fedpbc.paper.plan import PlotGroup
from tests.commandline import fedpbc, ran, refused
from tests.small_grids import numbers

pytestmark = pytest.mark.slow

BASE = PlotGroup(("cifar10", "bernoulli_varying"), "cifar10", "bernoulli_varying", 10)


def test_one_parameter_is_changed_at_a_time_and_what_the_tables_have_is_run_once():
    for quick in (False, True):
        groups = changed(BASE, quick)
        assert len({group.key for group in groups}) == len(groups)
        assert groups[0].changes == {}
        assert all(len(table) == 1 for g in groups[1:] for table in g.changes.values())
        values = [axis.quick if quick else axis.values for axis in AXES]
        # All but the one that every axis has, and that one once.
        assert len(groups) == 1 + sum(len(v) - 1 for v in values)


def test_the_tables_have_what_a_run_has_by_default():
    config = Config.from_dict({}).to_dict()
    for axis in AXES:
        assert config[axis.section][axis.option] == axis.base
        assert axis.base in axis.values
        assert axis.base in axis.quick


def test_links_that_do_not_vary_have_no_gamma():
    assert [axis.symbol for axis in axes_of(replace(BASE, links="markov"))] == ["α", "δ", "σ₀"]


def test_a_small_grid_end_to_end(tmp_path):
    out = tmp_path / "out"
    small = ("--quick", "--data", "digits", "--set", "clients=8", "--rounds", 2)
    few = (*small, "--algorithms", "fedavg,mifa", "--seeds", "0", "--out", out)
    ended = ran("paper", "ablation", *few, "--jobs", 1)
    assert "QUICK, not the paper's scale: digits, 2 rounds, 8 clients, seed 0." in ended.out
    assert "δ = 0.02 (table 1's)" in ended.out
    place = out / "digits/bernoulli_varying/delta-0.001/fedavg/seed-0/config.toml"
    config = tomllib.loads(place.read_text())
    assert config["links"]["delta"] == 0.001
    assert config["links"]["gamma"] == 0.4
    rows = numbers(out, "ablation")["rows"]
    assert len(rows) == len(changed(BASE, quick=True)) * 4
    for name in ("ablation.md", "report.html", "ablation-digits-bernoulli_varying.png"):
        assert (out / name).stat().st_size > 0
    assert (out / "ablation-digits-bernoulli_varying.pdf").is_file()
    page = (out / "ablation.md").read_text()
    assert "(quick)" in page.splitlines()[0]
    assert "QUICK, not the paper" in (out / "report.html").read_text()


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.option)
def test_what_is_changed_cannot_be_set(tmp_path, axis):
    given = f"{axis.section}.{axis.option}=0.5"
    small = ("--data", "digits", "--set", given, "--out", tmp_path / "out")
    assert "the ablation changes it itself" in refused(fedpbc("paper", "ablation", *small))
