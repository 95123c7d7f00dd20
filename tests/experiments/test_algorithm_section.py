from __future__ import annotations

import re
import tomllib

import pytest

from fedpbc import InputError
from fedpbc.experiments.advice.request import prepare_values
from fedpbc.experiments.algorithm_section import AlgorithmOptions, check_assigned, take_algorithm
from fedpbc.experiments.comparison_plan import plan_comparison
from fedpbc.experiments.entries import entries_of
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from tests.commandline import DIGITS, fedpbc, ran, refused

SMALL = {"data": "digits", "clients": 8, "rounds": 4}


def options(section, algorithms):
    """The options of each entry with those of a section [algorithm]."""
    taken = take_algorithm({"algorithm": section})
    return {e.label: e.options for e in taken.added_to(entries_of(algorithms))}


def test_options_belong_to_the_algorithm_that_is_named():
    section = {"name": "fedau", "cutoff": 7}
    tables = ["fedavg", "fedau", "fedau:over=heard", "fedau:cutoff=9"]
    assert options(section, tables) == {
        "fedavg": {},
        "fedau": {"cutoff": 7},
        "fedau:over=heard": {"cutoff": 7, "over": "heard"},
        "fedau:cutoff=9": {"cutoff": 9},
    }
    # A run of another algorithm may be compared with those that are named.
    assert options(section, ["fedavg"]) == {"fedavg": {}}


def test_without_a_name_they_belong_to_the_only_algorithm_that_has_them():
    assert options({"cutoff": 7}, ["fedavg", "fedau", "fedau:cutoff=9"]) == {
        "fedavg": {},
        "fedau": {"cutoff": 7},
        "fedau:cutoff=9": {"cutoff": 9},
    }
    plan = plan_comparison({**SMALL, "algorithm": {"cutoff": 7}})
    assert plan.checked("fedau").algorithm["cutoff"] == 7
    assert len(plan.entries) == 7


def test_a_view_to_deploy_is_not_that_of_another_entry():
    section = AlgorithmOptions("fedau", {}, {"deploy_view": "averaged"})
    plain, other = section.added_to(entries_of(["fedau", "fedau:cutoff=9"]))
    assert (plain.settings, other.settings) == ({"deploy_view": "averaged"}, {})


@pytest.mark.parametrize(
    ("section", "algorithms", "line"),
    [
        ({"bogus": 5}, ["fedavg", "fedau"], "algorithm.bogus is unknown: use one of cutoff, over"),
        ({"bogus": 5}, ["fedavg"], "algorithm.bogus is unknown: there are no options here"),
        (
            {"cutoff": 5},
            ["fedavg", "mifa"],
            "algorithm.cutoff is unknown: fedavg and mifa have no such option, but fedau has",
        ),
        (
            {"beta": 0.5},
            ["f3ast", "fedstale"],
            "algorithm.beta is 0.5, but f3ast and fedstale have this option: write it with the one "
            "that is meant, as in f3ast:beta=0.5",
        ),
        ({"cutoff": "x"}, ["fedau"], "algorithm.cutoff is 'x', but should be a valid integer"),
        (
            {"cutoff": 5},
            ["fedavg", "fedau:cutoff=9"],
            "algorithm.cutoff is 5, but fedau:cutoff=9 has a value of its own: leave one of them "
            "out",
        ),
        (
            {"cutoff": 5},
            {"fedau": {"cutoff": 9}},
            "algorithm.cutoff is 5, but fedau has a value of its own: write --set "
            "algorithms.fedau.cutoff=5",
        ),
        # Whether or not it is among the algorithms.
        (
            {"name": "fedau", "bogus": 3},
            ["fedavg"],
            "algorithm.bogus is unknown: use one of cutoff, over",
        ),
        ({"name": "fedau", "cutoff": 0}, ["fedavg"], "algorithm.cutoff is 0, but should be at lea"),
        ({"name": 3}, ["fedavg"], "algorithm.name is 3, but should be a name in quotes"),
    ],
)
def test_what_cannot_apply_is_refused(section, algorithms, line):
    values = {**SMALL, "algorithm": section, "algorithms": algorithms}
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        plan_comparison(values)
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        plan_tuning(values, TuningRequest(candidates=1))


def test_a_search_begins_with_the_options():
    values = {**SMALL, "algorithm": {"cutoff": 7}}
    plan = plan_tuning(values, TuningRequest(algorithms=["fedavg", "fedau"], candidates=1))
    assert plan.candidates["fedau"][0]["algorithm.cutoff"] == 7


def test_advice_takes_options_with_settings_of_ones_own_only():
    with pytest.raises(
        InputError, match=r"^algorithm.cutoff is 5, but should be left out: the opt"
    ):
        prepare_values({**SMALL, "algorithm": {"cutoff": 5}})
    with pytest.raises(InputError, match=r"^algorithm.bogus is unknown: use one of cutoff, over, "):
        prepare_values({**SMALL, "algorithm": {"bogus": 5}})
    with pytest.raises(InputError, match=r"^algorithm.bogus is unknown: use one of cutoff, over$"):
        prepare_values({**SMALL, "algorithm": {"name": "fedau", "bogus": 5}})
    tables = {"fedavg": {}, "fedau": {"over": "heard"}}
    _, tuned, _ = prepare_values({**SMALL, "algorithm": {"cutoff": 5}, "algorithms": tables})
    assert tuned["fedau"] == {"cutoff": 5, "over": "heard"}


def test_what_is_typed_and_every_entry_has_for_itself():
    entries = entries_of(["fedavg:learning_rate=0.1", "fedau:learning_rate=0.2"])
    shared = {"train": {"learning_rate": 0.3}}
    line = r"^train.learning_rate is 0.3, but .* have values of their own: leave one of them out$"
    with pytest.raises(InputError, match=line):
        check_assigned([], shared, entries, {"train.learning_rate": 0.3})
    with pytest.raises(InputError, match=line):
        check_assigned(["train.learning_rate=0.3"], shared, entries)
    check_assigned([], shared, [*entries, *entries_of(["mifa"])], {"train.learning_rate": 0.3})
    with pytest.raises(InputError, match=r"^seed has no effect here: --seeds says which seeds$"):
        check_assigned(["seed=3"], {"seed": 3}, entries, {}, {"seed": "--seeds says which seeds"})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tune", "--set", "seed=3"], "seed has no effect here: --seeds says which seeds"),
        (
            ["tune", "--algorithms", "fedau:cutoff=5", "--space", "cutoff=5,50"],
            "--space is 'cutoff', but should be left out: fedau:cutoff=5 has a value for it",
        ),
        (["advise", "--set", "seed=3"], "seed has no effect here: how many seeds there are"),
        (["advise", "--set", "views=[]"], "views has no effect here: advice evaluates all views"),
        (["compare", "--seeds", "0,1", "--set", "seed=3"], "seed has no effect here: --seeds says"),
    ],
)
def test_what_a_command_chooses_itself(tmp_path, words, line):
    given = ("--data", "digits", "--clients", 3, "--rounds", 1, "--out", tmp_path / "out")
    assert refused(fedpbc(*words, *given)).startswith(line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("assignments", "section", "line"),
    [
        (["algorithm=mifa"], "mifa", "algorithm is 'mifa', but should be one of fedavg, fedau"),
        (
            ["algorithm.memory=client"],
            {"name": "mifa", "memory": "client"},
            "algorithm.memory is 'client', but mifa is not among the algorithms: leave it out, or "
            "add mifa:memory=client",
        ),
        (
            ["algorithm.cutoff=5"],
            {"name": "fedau", "cutoff": 5},
            "algorithm.cutoff is 5, but fedau:cutoff=9 has a value of its own: leave one of them "
            "out",
        ),
    ],
)
def test_what_is_typed_must_be_of_one_that_is_run(assignments, section, line):
    entries = entries_of(["fedavg", "fedau:cutoff=9"])
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        check_assigned(assignments, {"algorithm": section}, entries)
    check_assigned([], {"algorithm": section}, entries)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("compare", "--algorithms", "fedavg,fedpbc", "--set", "algorithm.cutoff=5"),
            "algorithm.cutoff is unknown: fedavg and fedpbc have no such option, but fedau has",
        ),
        (
            ("compare", "run.toml", "--algorithms", "fedavg", "--set", "algorithm.cutoff=5"),
            "algorithm.cutoff is 5, but fedau is not among the algorithms: leave it out, or add "
            "fedau:cutoff=5",
        ),
        (
            ("tune", "--set", "algorithm.cutoff=7"),
            "algorithm.cutoff is unknown: fedpbc has no such option, but fedau has",
        ),
        (
            ("advise", "--set", "algorithm.cutoff=5"),
            "algorithm.cutoff is 5, but should be left out: the options of fedau are tuned here",
        ),
        (
            ("advise", "--set", "algorithm=fedau"),
            "algorithm is 'fedau', but should be left out: which one to run is what is looked for",
        ),
    ],
)
def test_on_the_command_line_nothing_is_written(tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('[algorithm]\nname = "fedau"\n')
    assert refused(fedpbc(*words, *DIGITS, "--rounds", 3, "--out", "out")) == line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_option_that_is_typed_is_used(tmp_path):
    small = (*DIGITS, "--rounds", 3, "--seeds", 0, "--jobs", 1)
    typed = ("--algorithms", "fedavg,fedau", "--set", "algorithm.cutoff=5")
    ran("compare", *small, *typed, "--out", tmp_path / "compared")
    config = tomllib.loads((tmp_path / "compared/fedau/seed-0/config.toml").read_text())
    assert config["algorithm"]["cutoff"] == 5
