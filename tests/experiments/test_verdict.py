"""Verdicts for comparisons whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import Comparison, InputError
from tests.scored_runs import failed, run, scored, seeds

BASE = {"fedavg": seeds(0.70, 0.72, 0.68)}
NEAR = seeds(0.71, 0.70, 0.70)  # +1, −2, +2 points: within noise, and higher by 1/3.
CLEAR = seeds(0.80, 0.825, 0.775)  # +10, +10.5, +9.5


def test_one_that_is_clearly_the_best():
    found = scored({**BASE, "fedau": CLEAR}, {"fedau": {"view": "averaged"}}).verdict()
    assert (found.winner, found.best, found.view) == ("fedau", "fedau", "averaged")
    assert found.within_noise == ("fedau",)
    assert (found.baseline, found.seeds, found.noise_known) == ("fedavg", (0, 1, 2), True)
    # 10 ± 4.303 × 0.5/√3.
    assert str(found) == found.sentence
    assert found.sentence == (
        "fedau (view averaged) is clearly the best: 80.0 % over 3 seeds, 10.0 points above fedavg "
        "(95 % interval 8.8 to 11.2); step sizes are untuned (the same for all)."
    )


def test_the_baseline_itself_is_the_best():
    found = scored({"mifa": seeds(0.60, 0.61, 0.59), **BASE}).verdict()
    assert (found.winner, found.baseline) == ("fedavg", "fedavg")
    assert found.sentence.startswith(
        "fedavg (view server) is clearly the best: 70.0 % over 3 seeds; step sizes"
    )


def test_what_cannot_be_told_apart_is_undecided_and_nobody_is_chosen_for_its_price():
    found = scored({**BASE, "fedpbc": NEAR}, {"fedpbc": {"steps": 1500, "client": 1}}).verdict()
    assert (found.winner, found.best) == (None, "fedpbc")
    assert found.within_noise == ("fedpbc", "fedavg")
    # −1/3 ± 4.303 × 2.0817/√3 points.
    assert found.sentence == (
        "undecided over 3 seeds: fedpbc (view server) is ahead with 70.3 %, 0.3 points above "
        "fedavg (95 % interval −4.8 to 5.5), but fedavg cannot be told apart from it, which "
        "would likely take more than 100 seeds; step sizes are untuned (the same for all)."
    )


def test_as_many_seeds_are_named_as_the_closest_one_takes():
    """+10, −1 and 0 points: within noise, but 3 points apart."""
    values = {"fedavg": seeds(0.70, 0.80, 0.75), "mifa": seeds(0.80, 0.79, 0.75)}
    # 3 ± 4.303 × 6.0828/√3; (t(97.5 %) + t(80 %)) × 6.0828/√35 is 2.97, with 34 seeds 3.01.
    found = scored(values).verdict()
    assert "fedavg cannot be told apart from it, which would likely take about 35 seeds;" in str(
        found
    )
    # −2, −2 and 0.5 points: −1.17 ± 1.44, for which 15 seeds are enough.
    values["fedau"] = seeds(0.78, 0.77, 0.755)
    found = scored(values).verdict()
    assert "fedau and fedavg cannot be told apart from it" in str(found)
    assert "take about 35 seeds;" in str(found)
    del values["fedavg"]
    assert "take about 15 seeds;" in str(scored(values).verdict())


def test_step_sizes_are_tuned_where_entries_have_their_own_or_a_search_chose_views():
    def sentence(**more):
        runs = [replace(run, **more.get(run.label, {})) for run in scored(VALUES).runs]
        return str(Comparison(runs).verdict())

    same, view = {"step_sizes": (0.05, 1.0)}, {"deploy_view": "server"}
    assert "untuned" in sentence(fedavg=same, fedau=same)
    assert "untuned" in sentence(fedavg={**same, **view}, fedau=same)
    assert "untuned" not in sentence(fedavg=same, fedau={"step_sizes": (0.1, 1.0)})
    assert "untuned" not in sentence(fedavg={**same, **view}, fedau={**same, **view})


VALUES = {**BASE, "fedau": CLEAR}


def test_the_lower_loss_is_the_better_one_in_the_sentence_too():
    values = {"fedavg": seeds(2.0, 3.0, 4.0), "mifa": seeds(1.0, 2.1, 2.9)}
    found = scored(values, classes=False).verdict()
    assert found.winner == "mifa"
    # 1 ± 4.303 × 0.1/√3.
    assert str(found).startswith(
        "mifa (view server) is clearly the best: loss 2 over 3 seeds, a loss 1 lower than that of "
        "fedavg (95 % interval 0.752 to 1.25);"
    )
    values["mifa"] = seeds(2.0, 3.1, 3.8)
    found = scored(values, classes=False).verdict()
    assert str(found).startswith("undecided over 3 seeds: mifa (view server) is ahead with loss ")
    assert "highest" not in str(found)


@pytest.mark.parametrize("classes", [False, True])
def test_a_loss_without_meaning_is_divergence_and_not_averaged_in(classes):
    runs = []
    for k, loss in enumerate([0.5, 1.7e20, 0.6]):
        # Of one algorithm with one seed: over 1.7e+20 anything else would be "ahead".
        wild = run("scaffold", k, 0.1, classes=classes)
        wild.metrics[0]["views"]["server"]["test_loss"] = loss
        runs += [wild, run("fedavg", k, 0.5 + k / 100, classes=classes)]
    comparison = Comparison(runs)
    found = comparison.verdict()
    assert found.not_ranked == {"scaffold": "diverged with seed 1"}
    assert str(found).endswith("not ranked: scaffold (diverged with seed 1).")
    assert found.best == "fedavg"
    row = comparison.paired().row("scaffold")
    assert row.seeds == (0, 2)
    assert abs(row.mean) < 1
    # With every seed: no row, and the baseline is another one.
    alone = Comparison([each for each in runs if each.seed == 1])
    assert alone.paired().row("scaffold") is None
    assert "compared with fedavg, not with scaffold, of which every run diverged" in str(
        alone.verdict("scaffold")
    )


def test_large_and_small_losses_are_no_divergence():
    """A loss is judged by those at the beginning, and one that falls never."""
    for scale in (1e-9, 1.0, 1e30):
        values = {"fedavg": seeds(scale, 2 * scale), "mifa": seeds(9 * scale, 8 * scale)}
        assert scored(values, classes=False).verdict().not_ranked == {}
    zero = scored({"fedavg": seeds(0.0, 0.0), "mifa": seeds(3.0, 4.0)}, classes=False)
    assert zero.verdict().not_ranked == {}


def test_one_seed_tells_nothing_about_noise():
    found = scored({"fedavg": seeds(0.5), "mifa": seeds(0.9)}).verdict()
    assert (found.winner, found.best, found.within_noise) == (None, "mifa", ("mifa",))
    assert not found.noise_known
    assert str(found).startswith(
        "undecided, since one seed says nothing about noise: mifa (view server) is ahead with "
        "90.0 %, 40.0 points above fedavg; step sizes"
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
    assert (found.winner, found.best) == (None, "fedavg")
    assert found.within_noise == ("fedavg", "fedpbc")
    assert str(found).startswith(
        "undecided over 3 seeds: fedavg (view server) is ahead with 70.0 %, and fedpbc equals it "
        "with every seed"
    )


def test_differences_that_are_the_same_with_every_seed():
    values = {**BASE, "mifa": {k: v + 0.125 for k, v in BASE["fedavg"].items()}}
    found = scored(values).verdict()
    assert found.within_noise == ("mifa",)
    assert "12.5 points above fedavg (the same with every seed)" in str(found)


def test_only_one_algorithm():
    found = scored({"mifa": seeds(0.70, 0.72, 0.68)}).verdict()
    assert (found.winner, found.best, found.baseline) == (None, "mifa", "mifa")
    assert str(found) == (
        "there is nothing to compare mifa (view server) with: 70.0 % over 3 seeds."
    )
    assert "70.0 % over 1 seed." in str(scored({"mifa": seeds(0.7)}).verdict())


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
    assert (none.best, none.winner, none.seeds) == (None, None, ())
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
    assert found.best == "fedavg"
    assert found.not_ranked == {"fedpbc": "no view that a server could deploy"}
    assert str(Comparison([]).verdict()) == "no run finished in a view that a server could deploy."


def test_what_needs_the_links_probabilities_is_named_and_not_ranked():
    found = scored({**BASE, "fedavg_known": CLEAR}).verdict()
    assert found.best == "fedavg"
    assert found.not_ranked == {"fedavg_known": "needs the links' probabilities"}
    assert "not ranked: fedavg_known (needs the links' probabilities)." in str(found)
    assert scored({"fedavg_known": CLEAR}).verdict().best == "fedavg_known"


def test_the_ceiling_is_no_candidate():
    found = scored({**BASE, "ceiling": seeds(0.9, 0.91, 0.92), "fedau": NEAR}).verdict()
    assert "ceiling" not in found.means
    assert "ceiling" not in found.within_noise
    assert "ceiling" not in str(found)
    assert found.differences["ceiling"].mean == pytest.approx(0.21)
    assert str(scored({"ceiling": seeds(0.9, 0.9)}).verdict()) == "there is nothing to rank."


def test_the_differences_of_losses_are_above_0_for_the_better():
    values = {"fedavg": seeds(2.0, 3.0, 4.0), "mifa": seeds(1.0, 2.1, 2.9)}
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
    for part in ("best", "within_noise", "winner", "view", "seeds", "means", "to_best"):
        assert getattr(again, part) == getattr(found, part)
    # A default baseline is the first row; everything else follows from the values.
    has_baseline = any(v is not None for v in table.get(baseline, ()))
    if has_baseline:
        assert again.differences == found.differences
    if found.best is not None:
        assert found.best == found.within_noise[0]
        assert found.means[found.best] == max(found.means.values())
    if found.winner is not None:
        assert len(found.means) > 1
        assert all(d.clearly_below for d in found.to_best.values())
    assert found.sentence.endswith(".")
    assert "None" not in found.sentence
