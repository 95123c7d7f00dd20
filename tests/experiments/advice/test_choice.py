"""Which algorithm to recommend of those that a comparison cannot tell apart."""

from __future__ import annotations

import pytest

from fedpbc.experiments.advice.choice import cheapest_of, choose
from fedpbc.experiments.paired import Costs, EntryScores
from tests.scored_runs import scored, seeds

BASE = {"fedavg": seeds(0.70, 0.72, 0.68)}
NEAR = seeds(0.71, 0.70, 0.70)  # +1, −2, +2 points: within noise, and higher by 1/3.
FURTHER = {"fedavg": seeds(0.70, 0.80, 0.75), "mifa": seeds(0.80, 0.79, 0.75)}


def chosen(values, costs, **more):
    comparison = scored(values, costs, **more)
    return choose(comparison.verdict(), comparison.scores())


def test_the_cheapest_near_the_best_is_chosen():
    found = chosen({**BASE, "fedpbc": NEAR}, {"fedpbc": {"steps": 1500, "client": 1}})
    assert (found.name, found.close) == ("fedavg", ("fedpbc", "fedavg"))
    values = {**BASE, "fedau": seeds(0.70, 0.71, 0.695), "fedpbc": NEAR}
    assert chosen(values, {"fedpbc": {"steps": 1500}}).name == "fedau"


def test_the_best_is_chosen_where_nothing_near_it_is_clearly_cheaper():
    assert chosen({**BASE, "fedau": NEAR}, {"fedau": {"steps": 109}}).name == "fedau"


def test_a_wide_interval_is_no_reason_to_choose_what_is_far_below():
    """+10, −1 and 0 points: within noise, but 3 points apart."""
    found = chosen(FURTHER, {"mifa": {"server": 101}})
    assert (found.name, found.close) == ("mifa", ("mifa",))
    values = {**FURTHER, "fedau": seeds(0.797, 0.788, 0.753)}
    found = chosen(values, {"mifa": {"server": 101}, "fedau": {"server": 2}})
    assert (found.name, found.close) == ("fedau", ("mifa", "fedau"))


def test_losses_are_near_within_one_percent():
    values = {"fedavg": seeds(2.0, 3.0, 4.0), "mifa": seeds(2.0, 3.1, 3.85)}
    costs = {"mifa": {"server": 101}}
    assert chosen(values, costs, classes=False).name == "fedavg"  # 3 and 2.98: 0.6 % apart
    values["mifa"] = seeds(2.0, 3.1, 3.75)  # 2.95: 1.7 %
    assert chosen(values, costs, classes=False).name == "mifa"


def entry(name: str, *costs: int | None) -> EntryScores:
    return EntryScores(name, name, "server", {0: 0.5}, Costs(*costs))


@pytest.mark.parametrize(
    ("costs", "cheapest"),
    [
        ({"a": (100, 9, 9, 9, 9), "b": (110, 1, 1, 1, 1)}, "a"),  # local steps are first
        ({"a": (100, 9, 9, 9, 9), "b": (109, 1, 1, 1, 1)}, "b"),  # below 10 %: equal
        ({"a": (100, 10, 10, 9, 9), "b": (100, 20, 1, 1, 1)}, "b"),  # 20 and 21: equal
        ({"a": (100, 10, 10, 9, 9), "b": (100, 20, 10, 1, 1)}, "a"),  # up and down together
        ({"a": (100, 9, 9, 2, 0), "b": (100, 9, 9, 1, 9)}, "b"),
        ({"a": (100, 9, 9, 1, 0), "b": (100, 9, 9, 1, 1)}, "a"),
        ({"a": (100, 9, 9, 1, 0), "b": (100, 9, 9, 1, 0)}, "ab"),
        ({"a": (100, None, 9, 9, 0), "b": (100, 1, 1, 1, 1)}, "b"),  # bytes decide nothing
        ({"a": (0, 0, 0, 1, 0), "b": (1, 0, 0, 1, 0)}, "a"),
        # Not by pairs, where each is within 10 % of the next.
        ({"a": (100, 3, 0, 0, 0), "b": (108, 2, 0, 0, 0), "c": (116, 1, 0, 0, 0)}, "b"),
    ],
)
def test_what_is_cheaper(costs, cheapest):
    entries = [entry(name, *counts) for name, counts in costs.items()]
    assert "".join(e.name for e in cheapest_of(entries)) == cheapest
    reverse = [e.name for e in cheapest_of(entries[::-1])]
    assert sorted(reverse) == sorted(cheapest)
