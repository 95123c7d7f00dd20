from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.tuning.plan import TuningPlan, plan_tuning, with_affordable_count
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.limits import parse_toml

DIGITS = {"data": "digits", "clients": 5, "rounds": 90}


def planned(values=DIGITS, **request):
    return plan_tuning(values, TuningRequest(**request))


def test_runs_are_scored_on_samples_that_were_held_out():
    plan = planned(algorithms=["fedau"], candidates=3)
    values = plan.config(plan.trials("fedau")[1], seed=4)
    assert values["task"] == {"validation": 0.2}
    assert values["train"]["learning_rate"] == 0.1
    assert values["algorithm"]["name"] == "fedau"
    assert (values["seed"], values["rounds"], values["evaluate_every"]) == (4, 90, 2)
    assert "mean" not in values["views"]


def test_a_budget_in_rounds():
    plan = planned(algorithms=["fedavg", "fedpbc"], budget=1000)
    assert plan.cost() <= 1000 < plan.cost(plan.count + 1)
    with pytest.raises(InputError, match="budget is 100, but should be at least 180 rounds"):
        planned(algorithms=["fedavg", "fedpbc"], budget=100)


def test_a_budget_in_minutes_follows_from_the_speed():
    plan = planned(algorithms=["fedavg", "fedpbc"], minutes=1)
    assert plan.count == 0
    slow = with_affordable_count(plan, {"fedavg": 0.02, "fedpbc": 0.2}, jobs=2)
    quick = with_affordable_count(plan, {"fedavg": 0.002, "fedpbc": 0.02}, jobs=2)
    assert 1 < slow.count < quick.count
    slowest = with_affordable_count(plan, {"fedavg": 9.0, "fedpbc": 9.0}, jobs=2)
    # What has been run to measure the speed, and nothing more: ten rounds of each.
    assert (slowest.count, slowest.cost()) == (1, 20)
    # Runs that are slow to start, on a busy machine, leave time for fewer of them.
    busy = with_affordable_count(plan, {"fedavg": 0.002, "fedpbc": 0.02}, jobs=2, start_seconds=3.0)
    assert 1 <= busy.count < quick.count
    few = replace(plan, candidates={label: c[:4] for label, c in plan.candidates.items()})
    assert with_affordable_count(few, {"fedavg": 0.002, "fedpbc": 0.02}, jobs=2).count == 4


def test_where_time_is_short_the_choice_is_made_earlier():
    plan = planned(algorithms=["fedavg", "fedpbc"], minutes=1)
    speeds = {"fedavg": 0.1, "fedpbc": 0.4}
    # Of 90 rounds, after 10 and 30: 5 candidates for all rounds would take longer than a minute.
    short = with_affordable_count(plan, speeds, jobs=2)
    assert short.most_rungs == 2
    halving = short.halving("fedavg")
    assert halving.rungs == (10, 30)
    assert halving.sizes[0] == short.count >= 5
    assert halving.cost() * 0.5 / 2 <= 60
    assert with_affordable_count(replace(plan, minutes=10), speeds, jobs=2).most_rungs == 0


@pytest.mark.parametrize("of_round", [0.01, 0.1, 0.28, 0.3, 0.5, 0.8, 1.1, 1.3, 1.7, 2.6])
def test_a_search_costs_no_more_than_its_minutes(of_round):
    plan = planned(algorithms=["fedavg", "fedpbc"], minutes=1)
    chosen = with_affordable_count(
        plan, {"fedavg": of_round, "fedpbc": of_round}, jobs=1, start_seconds=0.0
    )
    assert chosen.cost() * of_round <= 54


@pytest.mark.parametrize("minutes", [1, 2, 5])
def test_rungs_wait_for_their_last_run_however_many_cores_there_are(minutes):
    """With eight cores and a second per round; the last rung has two or three runs."""
    plan = planned({**DIGITS, "rounds": 270}, algorithms=["fedavg"], minutes=minutes)
    chosen = with_affordable_count(plan, {"fedavg": 1.0}, jobs=8, start_seconds=0.0)
    halving = chosen.halving("fedavg")
    steps = zip(halving.rungs, (0, *halving.rungs), halving.sizes, strict=False)
    seconds = sum(-(-size // 8) * (rung - before) for rung, before, size in steps)
    assert seconds <= 0.9 * 60 * minutes
    assert chosen.count >= 5


def test_all_entries_are_scored_after_the_same_rounds():
    line = "algorithms.fedau:rounds=6.rounds is 6, but should be 90 as of the others"
    with pytest.raises(InputError, match=line):
        planned(algorithms=["fedavg", "fedau:rounds=6"], candidates=2)


def test_a_single_candidate_runs_as_long_as_there_is_time():
    """Of both in 54 s: 180 rounds to the end, 60 to the second rung, 20 to the first."""
    plan = planned(algorithms=["fedavg", "fedpbc"], minutes=1)
    plan = replace(plan, candidates={label: c[:1] for label, c in plan.candidates.items()})

    def rungs(of_round):
        speeds = {"fedavg": of_round, "fedpbc": of_round}
        return with_affordable_count(plan, speeds, jobs=1, start_seconds=0.0).most_rungs

    assert [rungs(of_round) for of_round in (0.29, 0.31, 0.89, 0.91, 2.69, 2.71)] == [
        0,
        2,
        2,
        1,
        1,
        1,
    ]


def test_seventeen_slow_algorithms_in_a_small_budget():
    """At 0.35 s a round two candidates do not fit after a ninth: it is one, not for all rounds."""
    plan = planned({**DIGITS, "rounds": 300}, algorithms=["all"], minutes=200 / 60)
    for of_round in (0.30, 0.35, 1.0):
        chosen = with_affordable_count(plan, dict.fromkeys(plan.entries, of_round), jobs=2)
        probes = 30 * len(plan.entries) * of_round / 2  # cannot be avoided
        assert chosen.cost() * of_round / 2 <= max(180, probes)


def test_seeds_multiply_the_cost():
    one, three = planned(candidates=9), planned(candidates=9, seeds=[0, 1, 2])
    assert three.cost() == 3 * one.cost()


def test_a_plan_is_read_as_it_was_written():
    plan = planned(algorithms=["fedau", "mifa"], candidates=4, seeds=[1, 2], validation=0.3)
    text, inputs = plan.self_contained()
    again = TuningPlan.from_values(parse_toml(text), "tune.toml")
    assert inputs == {}
    assert again.candidates == plan.candidates
    assert replace(again, shared={}) == replace(plan, shared={})
    assert again.self_contained() == (text, inputs)


def test_a_comparisons_file_names_the_algorithms():
    values = {**DIGITS, "seeds": [0, 1], "algorithms": {"fedau": {"cutoff": 7}, "mifa": {}}}
    plan = planned(values, candidates=2)
    assert list(plan.entries) == ["fedau", "mifa"]
    assert plan.candidates["fedau"][0]["algorithm.cutoff"] == 7
    assert list(planned(values, algorithms=["mifa"]).entries) == ["mifa"]


def test_settings_that_a_label_names_are_not_tuned():
    plan = planned(algorithms=["fedau:cutoff=5", "fedau"], candidates=18)
    assert {c["algorithm.cutoff"] for c in plan.candidates["fedau:cutoff=5"]} == {5}
    assert len({c["algorithm.cutoff"] for c in plan.candidates["fedau"]}) > 1
    again = TuningPlan.from_values(parse_toml(plan.self_contained()[0]), "tune.toml")
    assert again.entries == plan.entries


def test_what_a_label_names_stays_when_a_choice_is_tuned_again():
    """The table is what 'fedpbc tune' writes: all settings, under the label of some of them."""
    train = {"learning_rate": 0.1, "global_learning_rate": 1.0}
    tables = {
        "fedau:cutoff=5": {"name": "fedau", "cutoff": 5, "train": train},
        "fedavg:learning_rate=0.1": {"name": "fedavg", "train": train},
        "mine: the 1st": {"name": "fedau", "cutoff": 5, "train": train},
    }
    for names in (None, [*tables]):
        plan = planned({**DIGITS, "algorithms": tables}, algorithms=names, candidates=18)
        values = {
            label: {key: len({c[key] for c in candidates}) for key in candidates[0]}
            for label, candidates in plan.candidates.items()
        }
        assert values["fedau:cutoff=5"]["algorithm.cutoff"] == 1
        assert values["fedau:cutoff=5"]["train.learning_rate"] > 1
        assert values["fedavg:learning_rate=0.1"]["train.learning_rate"] == 1
        assert values["fedavg:learning_rate=0.1"]["train.global_learning_rate"] > 1
        # A name of somebody's own names no settings.
        assert values["mine: the 1st"]["algorithm.cutoff"] > 1
        assert plan.candidates["fedau:cutoff=5"][0]["algorithm.cutoff"] == 5


def test_only_views_that_a_server_could_deploy_are_scored():
    line = (
        "views is 'mean', but should be with one that a server could deploy, since only these are "
        "scored: server, averaged, reported, corrected"
    )
    with pytest.raises(InputError, match=line):
        planned({**DIGITS, "views": ["mean"]}, candidates=1)
    plan = planned({**DIGITS, "views": ["mean", "reported"]}, candidates=1)
    assert plan.config(plan.trials("fedpbc")[0], 0)["views"] == ["reported"]


def test_the_ceiling_has_every_link_up_and_step_sizes_of_its_own():
    values = {**DIGITS, "links": {"name": "bernoulli", "p": 0.2}}
    plan = planned(values, algorithms=["fedavg"], ceiling=True, candidates=3)
    config = plan.config(plan.trials("ceiling")[1], seed=0)
    assert (config["links"], config["downlink"]) == ({"name": "always"}, {"name": "always"})
    assert (config["algorithm"], config["train"]["learning_rate"]) == ({"name": "fedavg"}, 0.1)
    assert plan.config(plan.trials("fedavg")[0], seed=0)["links"] == values["links"]
    spaces = {"ceiling.learning_rate": [0.3], "fedavg.learning_rate": [0.7]}
    plan = planned(values, algorithms=["fedavg", "ceiling"], space=spaces, candidates=1)
    rates = {label: c[0]["train.learning_rate"] for label, c in plan.candidates.items()}
    assert rates == {"fedavg": 0.7, "ceiling": 0.3}


def test_what_a_label_of_the_ceiling_names_is_not_tuned():
    plan = planned(algorithms=["fedavg", "ceiling:learning_rate=0.3"], candidates=3)
    assert list(plan.entries) == ["fedavg", "ceiling:learning_rate=0.3"]
    candidates = plan.candidates["ceiling:learning_rate=0.3"]
    assert {c["train.learning_rate"] for c in candidates} == {0.3}
    config = plan.config(plan.trials("ceiling:learning_rate=0.3")[0], seed=0)
    assert (config["links"], config["train"]["learning_rate"]) == ({"name": "always"}, 0.3)
    with pytest.raises(InputError, match=r"^algorithms.ceiling:learning_rate=x: train.learning_ra"):
        planned({**DIGITS, "algorithms": {"fedau": {}}}, algorithms=["ceiling:learning_rate=x"])


@pytest.mark.parametrize("request_", [{"algorithms": ["fedau", "ceiling"]}, {"ceiling": True}])
def test_the_ceiling_of_a_file_is_tuned_again_by_its_name_or_the_option(request_):
    tables = {"fedau": {}, "ceiling": {"train": {"learning_rate": 0.4}}}
    plan = planned({**DIGITS, "algorithms": tables}, **{"algorithms": ["fedau"], **request_})
    assert list(plan.entries) == ["fedau", "ceiling"]
    assert plan.candidates["ceiling"][0]["train.learning_rate"] == 0.4


def test_a_search_goes_on_from_what_another_has_chosen():
    tables = {"fedavg": {"train": {"learning_rate": 0.4}}, "mine": {"name": "fedau", "cutoff": 7}}
    values = {**DIGITS, "algorithms": tables}
    plan = planned(values, algorithms=["mine", "fedavg", "mifa"])
    assert plan.candidates["fedavg"][0]["train.learning_rate"] == 0.4
    assert plan.candidates["mine"][0]["algorithm.cutoff"] == 7
    assert plan.candidates["mifa"][0]["train.learning_rate"] == 0.05


def test_quadratics_have_nothing_to_hold_out(tmp_path):
    np.save(tmp_path / "targets.npy", np.arange(6.0).reshape(3, 2))
    values = {"task": {"targets": str(tmp_path / "targets.npy")}, "rounds": 9}
    values["links"] = {"name": "bernoulli", "p": 0.5}
    plan = planned(values, candidates=2)
    assert plan.validation is None
    assert "validation" not in plan.config(plan.trials("fedpbc")[0], 0)["task"]
    with pytest.raises(InputError, match=r"validation is 0\.2"):
        planned(values, validation=0.2)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"algorithms": ["nobody"]}, "algorithms is 'nobody'"),
        ({"algorithms": ["fedau", "fedau"]}, "different names"),
        ({"candidates": 0}, "candidates is 0, but should be at least 1"),
        ({"candidates": 61}, "candidates is 61, but should be at most 60"),
        ({"budget": 0}, "budget is 0"),
        ({"minutes": 0}, "minutes is 0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"minutes": 1, "budget": 5}, "give one of --candidates, --budget and --minutes"),
        ({"seeds": [0, 0]}, "seeds is"),
        ({"seeds": []}, "seeds is"),
        ({"seeds": None}, "seeds is None"),
        ({"seeds": 3}, "seeds is 3"),
        ({"algorithms": "fedau"}, "algorithms is 'fedau', but should be a list"),
        ({"algorithms": 3}, "algorithms is 3, but should be a list"),
        ({"algorithms": [3]}, r"algorithms is \[3\]"),
        ({"candidates": "many"}, "candidates is 'many'"),
        ({"validation": 1.5}, "validation is 1.5"),
        ({"validation": 0.0}, "validation is 0.0, but should be above 0"),
        ({"space": "x"}, "space is 'x', but should be values by setting"),
        ({"space": {3: [1]}}, "a name in space is 3"),
        ({"space": {"learning_rate": 0.1}}, "space.learning_rate is 0.1, but should be a list"),
        ({"space": {"cutof": [1]}}, "--space is 'cutof'"),
        (
            {"space": {"learning_rate": []}},
            r"space.learning_rate is \[\], but should",
        ),
        (
            {"space": {"learning_rate": [0.1, 0.2, 0.1]}},
            "space.learning_rate is .*different values",
        ),
        ({"space": {"learning_rate": [-1.0]}}, "train.learning_rate is -1"),
        ({"space": {"learning_rate": ["fast"]}}, "train.learning_rate is 'fast'"),
    ],
)
def test_what_is_wrong_is_found_at_once(request_, line):
    with pytest.raises(InputError, match=line):
        planned(**request_)


def test_a_plan_that_is_none():
    with pytest.raises(InputError, match=r"tune\.toml is not the plan of a search"):
        TuningPlan.from_values({"rounds": 3}, "tune.toml")
    text, _ = planned(candidates=2).self_contained()
    values = parse_toml(text)
    values["tune"]["count"] = "many"
    with pytest.raises(InputError, match="not the plan of a search"):
        TuningPlan.from_values(values, "tune.toml")


@pytest.mark.parametrize("wrong", [3, ["x"], [["fedavg"]], True, "x", {"fedavg": 3}, [{"a": 1}]])
@pytest.mark.parametrize(
    "key",
    ["algorithms", "algorithm", "task", "data", "train", "links", "views", "seeds", "plugins"],
)
def test_sections_that_are_none(key, wrong):
    values = {"data": "digits", "clients": 5, "rounds": 3, key: wrong}
    if key == "seeds":  # A search has its own.
        assert plan_tuning(values, TuningRequest(candidates=1)).seeds == [0]
        return
    with pytest.raises(InputError):
        plan_tuning(values, TuningRequest(candidates=1))


@pytest.mark.parametrize("section", [[0.5, "x"], 3, True])
def test_an_algorithms_section_on_one_that_is_none(section):
    tables = {"fedavg": {"train": {"local_steps": 1}}}
    with pytest.raises(InputError, match=r"train is .*, but should be a name, or a table"):
        planned({**DIGITS, "train": section, "algorithms": tables}, candidates=1)


def test_an_algorithms_links_of_another_scheme():
    """As in a comparison, they drop the options of the shared one."""
    values = {**DIGITS, "links": {"name": "bernoulli_varying", "gamma": 0.3}}
    tables = {"fedavg": {"links": {"name": "bernoulli", "p": 0.5}}, "mifa": {}}
    plan = planned({**values, "algorithms": tables}, candidates=1)
    links = plan.config(plan.trials("fedavg")[0], 0)["links"]
    assert links == {"name": "bernoulli", "p": 0.5}
