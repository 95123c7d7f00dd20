"""The list of runs: its order, and what follows from the results that are kept."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from fedpbc.algorithms import ALGORITHMS, PAPER_ALGORITHMS
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.settings import General
from fedpbc.links import find_scheme

sys.path.append(str(Path(__file__).parents[2] / "tools"))
plan = importlib.import_module("evidence_list")


def kept_of(runs, accuracy):
    """What would be kept of runs; ``accuracy`` of None: it diverged."""
    contents = {}
    for run in runs:
        value = accuracy(run)
        views = {"server": {"test_accuracy": [0.0, value]}, "mean": {"test_accuracy": [0.9, 0.0]}}
        if run.label != "fedpbc":
            del views["mean"]
        else:
            views["mean"] = views["server"]
        contents[run.id] = json.loads(
            json.dumps(
                {
                    "settings": run.settings,
                    "failure": "diverged in round 3" if value is None else None,
                    "evaluations": {"round": [100, 500], "views": views},
                }
            )
        )
    return contents


def pair_of(run):
    return run.settings["train"]["learning_rate"], run.settings["train"]["global_learning_rate"]


def peak(*best):
    """An accuracy that falls with the distance from a pair of the grid, in steps of the grid."""

    def accuracy(run):
        eta, eta_g = pair_of(run)
        rows, columns = plan.LEARNING_RATES, plan.GLOBAL_RATES
        away = abs(rows.index(eta) - rows.index(best[0]))
        return 0.8 - 0.01 * (away + abs(columns.index(eta_g) - columns.index(best[1])))

    return accuracy


def complete(kept, runs_of, accuracy):
    """Keep what is to be run until nothing new is."""
    while new := [run for run in runs_of(kept) if not run.is_kept(kept)]:
        kept = {**kept, **kept_of(new, accuracy)}
    return kept


def test_the_order_is_that_of_worth():
    runs = plan.evidence({})
    groups = list(dict.fromkeys(run.group for run in runs))
    assert groups == [
        *("grid cifar10", "table1 cifar10", "search cifar10", "study cifar10"),
        *("grid svhn", "table1 svhn", "ablation cifar10"),
    ]
    table = [run for run in runs if run.group == "table1 cifar10"]
    conditions = [(run.settings["links"]["name"], run.settings["seed"]) for run in table]
    assert list(dict.fromkeys(conditions)) == [
        *(("bernoulli_varying", 0), ("bernoulli", 0), ("markov_varying", 0), ("cyclic_reset", 0)),
        *(("markov", 0), ("cyclic", 0), ("bernoulli_varying", 1), ("bernoulli_varying", 2)),
    ]
    assert [run.label for run in table[:7]] == list(PAPER_ALGORITHMS)
    assert {run.settings["rounds"] for run in table} == {10_000}
    # Those that table 2 samples every 150 rounds.
    assert {150 % run.settings["evaluate_every"] for run in table if run.serves} == {0}
    study = [run for run in runs if run.part == "study"]
    assert {run.label for run in study} == {*ALGORITHMS, "ceiling"}
    assert len(study) == len(ALGORITHMS) * 4 * 5 + 5
    assert {run.settings["rounds"] for run in runs if run.group == "table1 svhn"} == {4_000}


def test_every_run_has_a_name_of_its_own_and_settings_that_are_allowed():
    runs = plan.evidence({})
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert re.fullmatch(r"[a-z0-9]+/[A-Za-z0-9._-]+", run.id)
    settings = {json.dumps(run.settings | {"seed": 0}): run.settings for run in runs}
    for one in settings.values():
        Config.from_dict(one)
        assert plan.estimated_seconds(one) > 0


def test_settings_of_the_paper_are_used_where_there_are_any():
    assert bool(plan.AT_END) == ("evaluate_every_at_end" in General.__dataclass_fields__)
    has_gamma = "gamma" in find_scheme("cyclic_reset").options
    assert bool(plan.CYCLIC_RESET_OF_THE_PAPER) == has_gamma


def test_only_searches_are_ready_before_their_results():
    assert {run.part for run in plan.evidence({}) if run.ready} == {"grid", "search"}


@pytest.mark.parametrize("best", [(0.05, 1.0), (0.1, 1.5), (0.1, 10.0), (0.001, 50.0), (0.01, 0.5)])
def test_the_grid_climbs_to_the_best_pair(best):
    kept = complete({}, lambda kept: plan.grid("cifar10", "fedpbc", kept)[0], peak(*best))
    tried, chosen = plan.grid("cifar10", "fedpbc", kept)
    assert chosen == best
    assert len(tried) < 24
    # Every neighbour of the chosen pair was run.
    assert {*plan.grid_neighbours(best)} <= {pair_of(run) for run in tried}


def test_what_a_grid_has_chosen_is_what_table_1_is_run_with():
    kept = complete({}, lambda kept: plan.grid("cifar10", "mifa", kept)[0], peak(0.1, 1.5))
    runs = [run for run in plan.evidence(kept) if run.ready and run.part in ("table1", "ablation")]
    assert {run.label for run in runs} == {"mifa"}
    assert {pair_of(run) for run in runs} == {(0.1, 1.5)}
    assert {run.settings["data"]["name"] for run in runs} == {"cifar10"}


def test_a_pair_that_diverges_is_the_worst():
    def accuracy(run):
        return None if pair_of(run) != (0.01, 0.5) else 0.1

    kept = complete({}, lambda kept: plan.grid("svhn", "fedavg", kept)[0], accuracy)
    assert plan.grid("svhn", "fedavg", kept)[1] == (0.01, 0.5)


def test_the_search_goes_on_beyond_its_ends():
    def accuracy(run):
        return {0.1: 0.5, 0.2: 0.6, 0.4: 0.4}.get(pair_of(run)[0], 0.3)

    kept = complete({}, lambda kept: plan.search("ceiling", kept)[0], accuracy)
    tried, chosen = plan.search("ceiling", kept)
    assert chosen == 0.2
    assert {pair_of(run)[0] for run in tried} == {0.0125, 0.025, 0.05, 0.1, 0.2, 0.4}
    assert plan.deploy_view("ceiling", kept) == "server"
    ready = [run for run in plan.evidence(kept) if run.ready and run.part == "study"]
    assert {(run.label, run.settings["links"]["name"]) for run in ready} == {("ceiling", "always")}
    assert {pair_of(run) for run in ready} == {(0.2, 1.0)}


def test_a_run_with_other_settings_is_not_the_kept_one():
    run = plan.evidence({})[0]
    kept = kept_of([run], lambda run: 0.5)
    assert run.is_kept(kept)
    kept[run.id]["settings"]["rounds"] += 1
    assert not run.is_kept(kept)
