from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpbc import Config, InputError
from fedpbc.experiments.comparison_directory import plan_comparison
from fedpbc.experiments.comparison_plan import ComparisonPlan, parse_plan
from tests.commandline import fedpbc, ran, refused

SMALL = {"data": "digits", "clients": 8, "rounds": 4, "seeds": [0]}


def resolved(plan: ComparisonPlan) -> dict[str, dict]:
    return {label: plan.checked(label).to_dict() for label in plan.entries}


def test_every_entry_has_its_own_settings_and_shares_the_rest():
    plan = plan_comparison(
        {
            **SMALL,
            "links": {"name": "bernoulli", "p": 0.4},
            "train": {"learning_rate": 0.1},
            "algorithms": {
                "fedpbc": {},
                "fedavg": {"train": {"learning_rate": 0.2}},
                "slow": {"name": "fedau", "cutoff": 5, "data": {"alpha": 1.0}, "clients": 9},
            },
            "ceiling": True,
        }
    )
    values = resolved(plan)
    assert list(values) == ["fedpbc", "fedavg", "slow", "ceiling"]
    rates = [config["train"]["learning_rate"] for config in values.values()]
    assert rates == [0.1, 0.2, 0.1, 0.2]
    assert [config["clients"] for config in values.values()] == [8, 8, 9, 8]
    assert [config["data"]["alpha"] for config in values.values()] == [0.1, 0.1, 1.0, 0.1]
    assert values["slow"]["algorithm"] == {"name": "fedau", "cutoff": 5, "over": "all"}
    assert values["ceiling"]["algorithm"]["name"] == "fedavg"
    assert [config["links"]["name"] for config in values.values()] == [*["bernoulli"] * 3, "always"]
    assert "p" not in values["ceiling"]["links"]


@pytest.mark.parametrize("algorithms", [["ceiling"], {"ceiling": {}}])
def test_the_ceiling_by_its_name_alone(algorithms):
    plan = plan_comparison(
        {**SMALL, "downlink": {"name": "bernoulli", "p": 0.5}, "algorithms": algorithms}
    )
    config = plan.checked("ceiling")
    assert (config.links["name"], config.downlink["name"]) == ("always", "always")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"algorithms": []}, r"algorithms is \[\], but should be a list of names"),
        (
            {"algorithms": {"ceiling": {"links": "markov"}}},
            "algorithms.ceiling.links.name is 'markov', but should be 'always'",
        ),
        (
            {"algorithms": {"ceiling": {"links": {"name": "always", "p": 0.5}}}},
            "algorithms.ceiling.links.p is 0.5, but should be left out: every link is up",
        ),
        ({"algorithms": ["fedau:cutoff=x"]}, "algorithms.fedau:cutoff=x: algorithm.cutoff is 'x'"),
        ({"algorithms": ["fedavg:data.alpha=-1"]}, "algorithms.fedavg:data.alpha=-1: data.alpha"),
        ({"algorithms": ["fedavg:downlink.p=0.5"]}, "downlink.p is 0.5, but downlink 'always'"),
        (
            {"algorithms": ["fedavg", "fedpbc:aggregation.trim=0.2"]},
            "algorithms.fedpbc:aggregation.trim=0.2: aggregation.trim is 0.2, but the aggregation",
        ),
        # Every entry chooses a scheme, and so none has the option that all were to share.
        (
            {"links": {"gamma": 0.2}, "algorithms": ["fedavg:links=markov_varying"]},
            "links.gamma is 0.2, but every entry chooses its own links: give it to those entries",
        ),
        (
            {"aggregation": {"trim": 0.3}, "algorithms": ["fedavg:aggregation=trimmed_mean"]},
            "aggregation.trim is 0.3, but every entry chooses its own aggregation",
        ),
        ({"ceiling": 1}, "ceiling is 1, but should be"),
        ({"algorithm": 5}, "algorithm is 5, but should be a name"),
        (
            {"algorithms": ["fedavg"], "sweep": {"data.alpha": [1, "x"]}},
            "algorithms.fedavg:data.al",
        ),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(values, line):
    with pytest.raises(InputError, match=f"^{line}"):
        plan_comparison({**SMALL, **values})


def test_a_setting_may_have_an_effect_for_one_entry_only():
    plan = plan_comparison(
        {
            **SMALL,
            "links": {"sigma": 10.0},
            "algorithms": ["fedavg", "fedavg:links.p=0.5"],
        }
    )
    assert len(plan.entries) == 2


def test_a_runs_configuration_is_a_comparison_of_one():
    config = Config.from_dict(
        {"algorithm": {"name": "fedau", "cutoff": 7}, "data": "digits", "rounds": 4, "seed": 9}
    ).to_dict()
    plan = plan_comparison({**config, "clients": 8})
    assert (list(plan.entries), plan.seeds) == (["fedau"], [9])
    assert plan.checked("fedau").algorithm["cutoff"] == 7
    # With others beside it, which have all of their own views.
    both = plan_comparison(
        {**config, "clients": 8, "algorithms": ["fedpbc", "fedau"], "seeds": "0-1"}
    )
    assert both.seeds == [0, 1]
    assert both.checked("fedau").algorithm["cutoff"] == 7
    assert "mean" in both.checked("fedpbc").general.views


@pytest.mark.slow
def test_a_ceiling_with_settings_of_its_own_has_every_link_up():
    table = {"train": {"learning_rate": 0.3}, "deploy_view": "server"}
    plan = plan_comparison({"algorithms": {"fedau": {}, "ceiling": table}, "rounds": 2})
    config = plan.checked("ceiling")
    assert (config.algorithm["name"], config.links["name"]) == ("fedavg", "always")
    assert (config.downlink["name"], config.train.learning_rate) == ("always", 0.3)


def test_a_view_to_deploy_is_that_of_its_algorithm_alone():
    run = {"algorithm": {"name": "fedpbc"}, "deploy_view": "corrected", "rounds": 2}
    plan = plan_comparison({**run, "algorithms": ["fedpbc", "fedavg"], "ceiling": True})
    views = {label: plan.checked(label).general.deploy_view for label in plan.entries}
    assert views == {"fedpbc": "corrected", "fedavg": None, "ceiling": None}
    # What suits failing links is not the ceiling's either; an entry may set it for itself.
    tables = {"fedavg": {"deploy_view": "averaged"}, "fedpbc:deploy_view=reported": {}}
    plan = plan_comparison({"algorithms": tables, "ceiling": True, "rounds": 2})
    views = {label: plan.checked(label).general.deploy_view for label in plan.entries}
    assert views == {
        "fedavg": "averaged",
        "fedpbc:deploy_view=reported": "reported",
        "ceiling": None,
    }
    again = parse_plan(tomllib.loads(plan.self_contained()[0]))
    assert {label: again.checked(label).general.deploy_view for label in again.entries} == views


def test_the_file_of_a_run_can_be_compared(tmp_path):
    run, folder = tmp_path / "run", tmp_path / "compared"
    small = ("--data", "digits", "--clients", 8, "--rounds", 4)
    ran("run", "--algorithm", "fedau", "--seed", 3, *small, "--out", run)
    ran(
        "compare", run / "config.toml", "--algorithms", "fedpbc,fedau", "--out", folder, "--jobs", 1
    )
    alone = tomllib.loads((run / "config.toml").read_text())
    assert tomllib.loads((folder / "fedau/seed-3/config.toml").read_text()) == alone
    assert (folder / "fedpbc/seed-3/summary.json").is_file()


@pytest.mark.slow
def test_a_sweep_on_the_command_line(tmp_path):
    small = ("--data", "digits", "--clients", 8, "--rounds", 4, "--seeds", "0", "--jobs", 1)
    sweep = ("--sweep", "data.alpha=0.1,1", "--ceiling")
    ended = ran("compare", *small, "--algorithms", "fedavg", *sweep, "--out", tmp_path / "out")
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    values = ("data.alpha=0.1", "data.alpha=1")
    assert folders == [f"{name}:{value}" for name in ("ceiling", "fedavg") for value in values]
    assert "‡ FedAvg with every link up" in ended.out
    line = refused(fedpbc("compare", *small, "--sweep", "data.alhpa=1", "--out", tmp_path / "no"))
    assert line.startswith("algorithms.fedpbc:data.alhpa=1: data.alhpa is unknown: use one of ")
    assert not (tmp_path / "no").exists()


ENTRIES = st.dictionaries(
    st.sampled_from(
        [
            *("data.alpha", "data.name", "links.p", "links.name", "links.sigma", "train.decay"),
            *("learning_rate", "rounds", "clients", "model", "evaluate_every", "downlink.name"),
        ]
    ),
    st.none(),
    max_size=3,
)
VALUES = {
    "data.alpha": 0.5,
    "data.name": "digits",
    "links.p": 0.3,
    "links.name": "markov",
    "links.sigma": 3.0,
    "train.decay": False,
    "learning_rate": 0.2,
    "rounds": 7,
    "clients": 5,
    "model": "softmax",
    "evaluate_every": 3,
    "downlink.name": "bernoulli",
}


@settings(deadline=None, max_examples=30)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=3), shared=ENTRIES)
def test_a_plan_that_is_written_and_read_is_the_same(entries, shared):
    values: dict = {"seeds": [3]}
    for key in shared:
        section, _, option = key.rpartition(".")
        if section:
            values.setdefault(section, {})[option] = VALUES[key]
    values["algorithms"] = {
        f"entry{k}": {"name": "fedpbc", **{key: VALUES[key] for key in entry}}
        for k, entry in enumerate(entries)
    }
    plan = parse_plan(values)
    text, inputs = plan.self_contained()
    again = parse_plan(tomllib.loads(text))
    assert inputs == {}
    assert resolved(again) == resolved(plan)
    assert again.self_contained()[0] == text
