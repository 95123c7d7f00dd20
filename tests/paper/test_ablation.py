from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from fedpbc.experiments.configuration import Config
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.paper.ablation import PARAMETERS, parameters_of, vary
from fedpbc.paper.plan import PaperCondition
from tests.commandline import fedpbc, ran, refused
from tests.small_grids import numbers

pytestmark = pytest.mark.slow

BASE = PaperCondition(("cifar10", "bernoulli_varying"), "cifar10", "bernoulli_varying", 10)


def test_one_parameter_is_changed_at_a_time_and_the_tables_values_are_run_once():
    for quick in (False, True):
        conditions = vary(BASE, quick)
        assert len({condition.key for condition in conditions}) == len(conditions)
        assert conditions[0].changes == {}
        assert all(len(table) == 1 for c in conditions[1:] for table in c.changes.values())
        values = [parameter.values(quick) for parameter in PARAMETERS]
        # All but the value that the tables have, and that one once.
        assert len(conditions) == 1 + sum(len(v) - 1 for v in values)


def test_the_tables_values_are_the_defaults_of_a_run():
    config = Config.from_dict({}).to_dict()
    # What p is drawn from is written down only where it was given.
    config["links"] = {**vars(ProbabilityOptions()), **config["links"]}
    for parameter in PARAMETERS:
        assert config[parameter.section][parameter.option] == parameter.base
        assert parameter.base in parameter.full_values
        assert parameter.base in parameter.quick_values


def test_links_that_do_not_vary_have_no_gamma():
    parameters = parameters_of(replace(BASE, links="markov"))
    assert [parameter.symbol for parameter in parameters] == ["α", "δ", "σ₀"]


def test_a_small_grid_end_to_end(tmp_path):
    out = tmp_path / "out"
    small = ("--quick", "--data", "digits", "--set", "clients=8", "--rounds", 2)
    few = (*small, "--algorithms", "fedavg,mifa", "--seeds", "0", "--out", out)
    ended = ran("paper", "ablation", *few, "--jobs", 1)
    assert "QUICK, not the paper's scale: digits, 2 rounds, 8 clients, seed 0." in ended.out
    assert "δ = 0.02 (table 1's)" in ended.out
    path = out / "digits/bernoulli_varying/delta-0.001/fedavg/seed-0/config.toml"
    config = tomllib.loads(path.read_text())
    assert config["links"]["delta"] == 0.001
    assert config["links"]["gamma"] == 0.4
    rows = numbers(out, "ablation")["rows"]
    assert len(rows) == len(vary(BASE, quick=True)) * 4
    for name in ("ablation.md", "report.html", "ablation-digits-bernoulli_varying.png"):
        assert (out / name).stat().st_size > 0
    assert (out / "ablation-digits-bernoulli_varying.pdf").is_file()
    page = (out / "ablation.md").read_text()
    assert "(quick)" in page.splitlines()[0]
    assert "QUICK, not the paper" in (out / "report.html").read_text()


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.option)
def test_a_varied_parameter_cannot_be_set(tmp_path, parameter):
    setting = f"{parameter.section}.{parameter.option}=0.5"
    small = ("--data", "digits", "--set", setting, "--out", tmp_path / "out")
    assert "the ablation varies it" in refused(fedpbc("paper", "ablation", *small))
