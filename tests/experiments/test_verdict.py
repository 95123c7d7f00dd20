"""Verdicts for comparisons whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import Comparison, InputError
from fedpbc.experiments.candidates import cheapest_of
from fedpbc.experiments.paired import Costs, EntryScores
from tests.scored_runs import failed, run, scored, seeds

BASE = {"fedavg": seeds(0.70, 0.72, 0.68)}
NEAR = seeds(0.71, 0.70, 0.70)  # +1, −2, +2 points: within noise, and higher by 1/3.
CLEAR = seeds(0.80, 0.825, 0.775)  # +10, +10.5, +9.5


def test_one_that_is_clearly_best():
    costs = {"fedau": {"steps": 150, "sent": 1000, "server": 2, "client": 1, "view": "averaged"}}
    found = scored({**BASE, "fedau": CLEAR}, costs).verdict()
    assert (found.best, found.chosen, found.view) == ("fedau", "fedau", "averaged")
    assert found.within_noise == found.cheapest == ("fedau",)
    assert (found.baseline, found.seeds, found.noise_known) == ("fedavg", (0, 1, 2), True)
    # 10 ± 4.303 × 0.5/√3.
    assert str(found) == found.sentence
    assert found.sentence == (
        "fedau (view averaged) is best: 80.0 % over 3 seeds, 10.0 points above fedavg (95 % "
        "interval 8.8 to 11.2, 3 of 3 seeds won); it costs 1.5 × fedavg's local steps, 2 models on "
        "the server (fedavg 1) and 1 on a client (fedavg 0), with the same bytes up."
    )


def test_the_baseline_itself_is_best():
    found = scored({"mifa": seeds(0.60, 0.61, 0.59), **BASE}).verdict()
    assert (found.best, found.chosen, found.baseline) == ("fedavg", "fedavg", "fedavg")
    assert found.sentence == (
        "fedavg (view server) is best: 70.0 % over 3 seeds, and all others are clearly below it."
    )


def test_within_noise_the_cheaper_is_chosen_and_what_it_may_lose_is_said():
    found = scored({**BASE, "fedpbc": NEAR}, {"fedpbc": {"steps": 1500, "client": 1}}).verdict()
    assert (found.best, found.chosen) == ("fedpbc", "fedavg")
    assert found.within_noise == ("fedpbc", "fedavg")
    assert found.close == ("fedpbc", "fedavg")
    # −1/3 ± 4.303 × 2.0817/√3 points.
    assert found.sentence == (
        "fedpbc (view server) is highest with 70.3 %; fedavg cannot be told apart from it over 3 "
        "seeds; choose fedavg (view server), the cheapest of those at most half a point below it: "
        "70.0 %, 0.3 points below fedpbc (95 % interval −4.8 to 5.5), so it may lose up to 5.5; "
        "fedpbc costs 15 × fedavg's local steps and 1 model on a client (fedavg 0), with the same "
        "bytes up and models on the server; more than 100 seeds would be needed to show so small a "
        "difference."
    )


def test_what_cannot_lose_a_point_is_chosen_without_a_warning():
    near = seeds(0.702, 0.717, 0.684)  # +0.2, −0.3, +0.4: 0.1 ± 4.303 × 0.3606/√3 points.
    found = scored({**BASE, "fedpbc": near}, {"fedpbc": {"steps": 1500}}).verdict()
    assert found.chosen == "fedavg"
    assert "0.1 points below fedpbc (95 % interval −0.8 to 1.0); fedpbc costs" in str(found)
    assert "may lose" not in str(found)


FURTHER = {"fedavg": seeds(0.70, 0.80, 0.75), "mifa": seeds(0.80, 0.79, 0.75)}


def test_a_wide_interval_is_no_reason_to_choose_what_is_far_below():
    """+10, −1 and 0 points: within noise, but 3 points apart."""
    found = scored(FURTHER, {"mifa": {"server": 101}}).verdict()
    assert found.within_noise == ("mifa", "fedavg")
    assert found.close == found.cheapest == ("mifa",)
    assert (found.best, found.chosen, found.gamble) == ("mifa", "mifa", "fedavg")
    # 3 ± 4.303 × 6.0828/√3; (t(97.5 %) + t(80 %)) × 6.0828/√35 is 2.97, with 34 seeds 3.01.
    assert found.sentence == (
        "mifa (view server) is highest with 78.0 %, 3.0 points above fedavg (95 % interval −12.1 "
        "to 18.1, 1 of 3 seeds won); fedavg cannot be told apart from it over 3 seeds; choose "
        "mifa; it costs 101 models on the server (fedavg 1), with the same local steps, bytes up "
        "and models on a client; fedavg (view server) is cheaper, but a gamble; about 35 seeds "
        "would likely show whether that is real."
    )


def test_the_cheapest_of_the_close_ones_is_chosen_and_what_is_cheaper_still_is_named():
    values = {**FURTHER, "fedau": seeds(0.797, 0.788, 0.753)}
    found = scored(values, {"mifa": {"server": 101}, "fedau": {"server": 2}}).verdict()
    assert found.within_noise == ("mifa", "fedau", "fedavg")
    assert found.close == ("mifa", "fedau")
    assert (found.best, found.chosen, found.gamble) == ("mifa", "fedau", "fedavg")
    assert str(found).endswith(
        "; fedavg (view server) is cheaper still, but a gamble: 3.0 points below mifa (95 % "
        "interval −12.1 to 18.1); about 35 seeds would likely show whether that is real."
    )


def test_losses_are_close_within_one_percent():
    values = {"fedavg": seeds(2.0, 3.0, 4.0), "mifa": seeds(2.0, 3.1, 3.85)}
    costs = {"mifa": {"server": 101}}
    found = scored(values, costs, classes=False).verdict()
    assert (found.best, found.chosen) == ("mifa", "fedavg")  # 3 and 2.98: 0.6 % apart
    assert "the cheapest of those at most 1 % worse: loss 3, 0.0167 in loss worse" in str(found)
    values["mifa"] = seeds(2.0, 3.1, 3.75)  # 2.95: 1.7 %
    found = scored(values, costs, classes=False).verdict()
    assert (found.best, found.chosen, found.gamble) == ("mifa", "mifa", "fedavg")


def test_within_noise_and_no_clearly_cheaper_one():
    found = scored({**BASE, "fedau": NEAR}, {"fedau": {"steps": 109}}).verdict()
    assert (found.best, found.chosen, found.gamble) == ("fedau", "fedau", None)
    assert found.cheapest == ("fedau", "fedavg")
    assert "choose fedau, since none of them is clearly cheaper; it costs" in str(found)
    assert "1.09 × fedavg's local steps" in str(found)


def test_the_highest_of_the_cheapest():
    values = {**BASE, "fedau": seeds(0.70, 0.71, 0.695), "fedpbc": NEAR}
    found = scored(values, {"fedpbc": {"steps": 1500}}).verdict()
    assert (found.best, found.chosen) == ("fedpbc", "fedau")
    assert found.cheapest == ("fedau", "fedavg")
    assert (
        "choose fedau (view server), the highest of the cheapest among those at most half a point "
        "below it: 70.2 %, 0.2 points above fedavg"
    ) in str(found)


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


def test_one_seed_tells_nothing_about_noise():
    found = scored({"fedavg": seeds(0.5), "mifa": seeds(0.9)}).verdict()
    assert (found.best, found.chosen, found.within_noise) == ("mifa", "mifa", ("mifa",))
    assert not found.noise_known
    assert str(found).startswith(
        "with one seed the noise is unknown, so this is only a hint: mifa (view "
        "server) is highest with 90.0 %, 40.0 points above fedavg; it costs the same as fedavg"
    )


def test_two_seeds_have_wide_intervals():
    found = scored({"fedavg": seeds(0.5, 0.5), "mifa": seeds(0.60, 0.64)}).verdict()
    # 12 ± 12.706 × 2 points.
    assert found.within_noise == ("mifa", "fedavg")
    assert found.differences["mifa"].interval.low == pytest.approx(0.12 - 12.7062 * 0.02)
    assert scored(
        {"fedavg": seeds(0.5, 0.5), "mifa": seeds(0.63, 0.64)}
    ).verdict().within_noise == ("mifa",)


def test_runs_that_are_equal_to_the_bit():
    values = {**BASE, "fedpbc": BASE["fedavg"], "mifa": seeds(0.5, 0.52, 0.51)}
    found = scored(values, {"fedpbc": {"client": 1}}).verdict()
    assert (found.best, found.chosen) == ("fedavg", "fedavg")
    assert found.within_noise == ("fedavg", "fedpbc")
    assert "fedavg and fedpbc are equal with every seed" in str(found)


def test_differences_that_are_the_same_with_every_seed():
    values = {**BASE, "mifa": {k: v + 0.125 for k, v in BASE["fedavg"].items()}}
    found = scored(values).verdict()
    assert found.within_noise == ("mifa",)
    assert "the difference of fedavg is the same with every seed, so noise cannot be told" in str(
        found
    )


def test_only_one_algorithm():
    found = scored({"mifa": seeds(0.70, 0.72, 0.68)}).verdict()
    assert (found.best, found.chosen, found.baseline) == ("mifa", "mifa", "mifa")
    # 70 ± 4.303 × 2/√3.
    assert str(found) == (
        "there is nothing to compare mifa (view server) with: 70.0 % over 3 seeds, 95 % interval "
        "65.0 to 75.0."
    )
    assert "with one seed, which says nothing about noise" in str(
        scored({"mifa": seeds(0.7)}).verdict()
    )


def test_one_that_fails_where_another_finishes_is_not_ranked():
    runs = [*scored({**BASE, "fedau": NEAR}).runs, run("scaffold", 0, 0.9), run("scaffold", 1, 0.9)]
    found = Comparison([*runs, failed("scaffold", 2), failed("mimic", 0)]).verdict()
    assert found.best == "fedau"
    assert found.not_ranked == {
        "scaffold": "not finished with seed 2",
        "mimic": "no run finished",
    }
    assert str(found).endswith(
        "not ranked: mimic (no run finished) and scaffold (not finished with seed 2)."
    )
    # Its difference over the seeds that it finished is there.
    assert found.differences["scaffold"].seeds == (0, 1)


def test_where_all_failed_somewhere_the_common_seeds_count():
    runs = scored({"fedavg": {0: 0.5, 1: 0.5, 2: 0.5}, "mifa": {1: 0.9, 2: 0.8, 3: 0.1}}).runs
    found = Comparison([*runs, failed("fedavg", 3), failed("mifa", 0)]).verdict()
    assert found.seeds == (1, 2)
    assert found.means == pytest.approx({"fedavg": 0.5, "mifa": 0.85})
    apart = scored({"fedavg": {0: 0.5}, "mifa": {1: 0.5}}).runs
    none = Comparison([*apart, failed("fedavg", 1), failed("mifa", 0)]).verdict()
    assert (none.best, none.chosen, none.seeds) == (None, None, ())
    assert str(none) == "there is no seed that fedavg and mifa all finished."


def test_seeds_that_were_never_run_are_no_failures():
    found = scored({"fedavg": seeds(0.5, 0.6, 0.7, 0.8), "mifa": seeds(0.6, 0.69, 0.81)}).verdict()
    assert found.seeds == (0, 1, 2)
    assert found.not_ranked == {}
    assert found.means["fedavg"] == pytest.approx(0.6)


def test_no_view_that_a_server_could_deploy():
    only_mean = [run("fedpbc", k, 0.9, view="mean") for k in (0, 1)]
    none = Comparison([*only_mean, failed("fedpbc", 2)]).verdict()
    assert (none.best, none.baseline) == (None, None)
    assert str(none) == (
        "no run finished in a view that a server could deploy; not ranked: fedpbc (no view that a "
        "server could deploy)."
    )
    found = Comparison([*only_mean, *scored(BASE).runs]).verdict()
    assert found.chosen == "fedavg"
    assert found.not_ranked == {"fedpbc": "no view that a server could deploy"}
    assert str(Comparison([]).verdict()) == "no run finished in a view that a server could deploy."


def test_known_probabilities_are_never_recommended_silently():
    found = scored({**BASE, "fedavg_known": CLEAR}).verdict()
    assert (found.best, found.chosen) == ("fedavg", "fedavg")
    assert found.needs_probabilities == ("fedavg_known",)
    assert (
        "fedavg_known is 10.0 points above fedavg (95 % interval 8.8 to 11.2), but needs the "
        "links' probabilities, which a server seldom knows"
    ) in str(found)
    # Where it is not better, it is no subject.
    assert "fedavg_known" not in str(scored({**BASE, "fedavg_known": seeds(0, 0, 0.1)}).verdict())
    alone = scored({"fedavg_known": CLEAR}).verdict()
    assert alone.chosen == "fedavg_known"
    assert "but fedavg_known needs the links' probabilities" in str(alone)


def test_the_ceiling_is_no_candidate():
    found = scored({**BASE, "ceiling": seeds(0.9, 0.91, 0.92), "fedau": NEAR}).verdict()
    assert "ceiling" not in found.means
    assert "ceiling" not in found.within_noise
    assert "ceiling" not in str(found)
    assert found.differences["ceiling"].mean == pytest.approx(0.21)
    assert str(scored({"ceiling": seeds(0.9, 0.9)}).verdict()) == "there is nothing to choose from."


def test_without_classes():
    values = {"fedavg": seeds(2.0, 3.0, 4.0), "mifa": seeds(1.0, 2.1, 2.9)}
    found = scored(values, classes=False).verdict()
    assert found.chosen == "mifa"
    assert "mifa (view server) is best: loss 2 over 3 seeds, 1 in loss better than fedavg" in str(
        found
    )
    below = scored(values, classes=False).verdict("mifa")
    assert below.differences["fedavg"].mean == pytest.approx(-1)


def test_another_baseline():
    values = {**BASE, "fedau": NEAR, "mifa": CLEAR}
    found = scored(values).verdict("fedau")
    assert found.baseline == "fedau"
    assert "9.7 points above fedau (95 % interval" in str(found)
    with pytest.raises(
        InputError, match="baseline is 'x', but should be one of fedavg, fedau, mifa"
    ):
        scored(values).verdict("x")
    gone = Comparison([*scored(values).runs, failed("scaffold", 0)]).verdict("scaffold")
    assert gone.baseline == "fedavg"
    assert "compared with fedavg, not with scaffold" in str(gone)


def test_constraints():
    """What a server cannot store is no choice; the best of the views that it can is."""
    views = {"server": 0.75, "corrected": 0.85}
    runs = [run("fedpbc", k, 0, views=views, server=9) for k in (0, 1)]
    runs += [run("fedavg", k, v, server=2) for k, v in enumerate([0.70, 0.72])]
    comparison = Comparison(runs)
    assert comparison.verdict().best == "fedpbc"
    found = comparison.verdict(allowed=lambda row: row.models_on_server <= 2)
    assert (found.best, found.not_ranked) == ("fedavg", {"fedpbc": "not allowed"})
    assert found.differences["fedpbc"].mean == pytest.approx(0.14)
    plain = comparison.verdict(allowed=lambda row: row.view != "corrected")
    assert plain.views["fedpbc"] == "server"
    assert plain.means["fedpbc"] == pytest.approx(0.75)


NAMES = ("fedavg", "fedau", "mifa", "fedpbc", "fedavg_known", "ceiling")
cell = st.one_of(st.none(), st.sampled_from([0.1, 0.3, 0.5]), st.floats(0, 1))
tables = st.dictionaries(
    st.sampled_from(NAMES), st.lists(cell, min_size=3, max_size=3), min_size=1, max_size=6
)
costs = st.dictionaries(
    st.sampled_from(NAMES),
    st.fixed_dictionaries({"steps": st.integers(0, 3), "server": st.one_of(st.none(), st.just(2))}),
)


@given(tables, costs, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(table, costs, random):
    runs = [
        failed(name, k) if value is None else run(name, k, value, **costs.get(name, {}))
        for name, values in table.items()
        for k, value in enumerate(values)
    ]
    baseline = random.choice([run.algorithm for run in runs])
    found = Comparison(runs).verdict(baseline)
    random.shuffle(runs)
    again = Comparison(runs).verdict(baseline)
    for part in ("best", "within_noise", "chosen", "view", "seeds", "means", "to_best"):
        assert getattr(again, part) == getattr(found, part)
    # A default baseline is the first row; everything else follows from the values.
    has_baseline = any(v is not None for v in table.get(baseline, ()))
    if has_baseline:
        assert again.differences == found.differences
    if found.chosen is not None:
        assert found.chosen in found.within_noise
        assert found.chosen in found.cheapest
        assert found.best == found.within_noise[0] == found.close[0]
        assert set(found.cheapest) <= set(found.close) <= set(found.within_noise)
        assert found.gamble is None or found.gamble in set(found.within_noise) - set(found.close)
        assert found.means[found.best] == max(found.means.values())
    assert found.sentence.endswith(".")
    assert "None" not in found.sentence
