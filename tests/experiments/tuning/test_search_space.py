from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.tuning.search_space import (
    LEARNING_RATE,
    SearchSpace,
    default_space,
    resolve_space,
    tuned_key,
)
from fedpbc.options import checked


def config(**values):
    return Config.from_dict({"data": "digits", **values}, lenient=True)


def test_the_default_comes_first_and_then_the_step_size_alone():
    space = default_space(config(algorithm="fedau"))
    first, *others = space.candidates(8, seed=0)
    assert first == {
        "train.learning_rate": 0.05,
        "train.global_learning_rate": 1.0,
        "algorithm.cutoff": 50,
        "algorithm.over": "all",
    }
    assert [c[LEARNING_RATE] for c in others[:6]] == [0.1, 0.025, 0.2, 0.0125, 0.4, 0.8]
    assert all({**c, LEARNING_RATE: 0.05} == first for c in others[:6])
    assert {**others[6], LEARNING_RATE: 0.05} != first


def test_the_space_goes_from_the_configured_values():
    space = default_space(
        config(
            algorithm={"name": "fedau", "cutoff": 7},
            train={"learning_rate": 0.3, "global_learning_rate": 2.0},
        ),
    )
    assert space.values[LEARNING_RATE][:3] == [0.3, 0.6, 0.15]
    assert space.values["train.global_learning_rate"] == [2.0, 1.0, 3.0]
    assert space.values["algorithm.cutoff"] == [7, 5, 20, 200]


def test_values_that_are_tried_are_allowed():
    for name, kind in ALGORITHMS.items():
        for option, values in default_space(config(algorithm=name)).values.items():
            section, _, key = option.partition(".")
            if section == "algorithm":
                for value in values:
                    assert checked(kind.__init__, {key: value})[key] == value


def test_values_that_are_given_replace_the_default_ones():
    own = config(algorithm="fedau")
    given = {"learning_rate": [0.2, 0.05], "fedau.cutoff": [3], "mifa.over": ["heard"]}
    space = resolve_space(given, "fedau", own)
    assert space.values[LEARNING_RATE] == [0.05, 0.2]
    assert space.values["algorithm.cutoff"] == [3]
    assert "algorithm.over" in space.values
    assert space.values["algorithm.over"] == ["all", "heard"]


def test_the_values_of_one_algorithm_take_precedence_in_any_order():
    own = config(algorithm="fedau")
    given = {"fedau.learning_rate": [0.3], "learning_rate": [0.1, 0.2]}
    for order in (given, dict(reversed(given.items()))):
        assert resolve_space(order, "fedau", own).values[LEARNING_RATE] == [0.3]
    others = resolve_space(given, "fedavg", config(algorithm="fedavg"))
    assert others.values[LEARNING_RATE] == [0.1, 0.2]


def test_the_configured_values_are_tried_with_all_their_digits():
    own = config(train={"learning_rate": 1 / 3, "global_learning_rate": 0.123456789})
    first, second, *_ = default_space(own).candidates(2, seed=0)
    assert first["train.learning_rate"] == 1 / 3
    assert first["train.global_learning_rate"] == 0.123456789
    assert second["train.learning_rate"] == 0.666667


def test_every_setting_of_a_large_space_varies():
    space = SearchSpace({f"algorithm.{name}": range(10) for name in "abcdefgh"})
    candidates = space.candidates(40, seed=0)
    assert len(candidates) == 40
    assert all(len({c[key] for c in candidates}) > 5 for key in space.values)
    assert space.candidates(40, seed=0) == candidates


def test_which_settings_can_be_tuned():
    own = config(algorithm="fedau")
    assert tuned_key("cutoff", "fedau", own) == "algorithm.cutoff"
    assert tuned_key("train.proximal", "fedau", own) == "train.proximal"
    assert tuned_key("proximal", "fedau", own) == "train.proximal"
    for key in ("name", "mifa.over", "data.alpha", "links.gamma", "cutof"):
        assert tuned_key(key, "fedau", own) is None


values = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@given(st.dictionaries(st.sampled_from(["a", "b", LEARNING_RATE]), values, min_size=1), st.data())
def test_candidates_are_different_and_begin_alike(tables, data):
    space = SearchSpace(tables)
    count = data.draw(st.integers(1, 30))
    candidates = space.candidates(count, seed=3)
    assert len(candidates) == min(count, space.size)
    assert len({tuple(sorted(c.items())) for c in candidates}) == len(candidates)
    assert all(c[key] in tables[key] for c in candidates for key in tables)
    assert space.candidates(30, seed=3)[: len(candidates)] == candidates
