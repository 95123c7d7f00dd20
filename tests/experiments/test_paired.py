"""Paired differences by hand, and what must hold for any values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import Comparison, InputError
from fedpbc.experiments.paired import Difference, check_baseline
from tests.scored_runs import failed, run, scored, seeds


def test_a_difference_by_hand():
    found = scored({"fedavg": seeds(0.70, 0.80, 0.60), "fedau": seeds(0.73, 0.82, 0.61)}).paired()
    assert (found.baseline, found.has_classes, found.note) == ("fedavg", True, "")
    base, other = found.rows
    assert base.difference is None
    d = other.difference
    assert (d.name, d.baseline, d.seeds, d.won, d.tied) == ("fedau", "fedavg", (0, 1, 2), 3, 0)
    assert d.mean == pytest.approx(0.02)
    # 0.03, 0.02, 0.01: deviation 0.01, by √3, times 4.303.
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert d.interval.low == pytest.approx(0.02 - half)
    assert d.interval.high == pytest.approx(0.02 + half)
    assert not d.clearly_above
    # The mean alone varies ten times as much: 0.1 over seeds, not 0.01.
    assert base.mean == pytest.approx(0.7)
    assert base.interval.high == pytest.approx(0.7 + 10 * half)


def test_pairing_takes_out_what_a_seed_makes_hard():
    """Coverage of a difference where seeds differ ten times as much as algorithms do."""
    rng = np.random.default_rng(0)
    hard = rng.normal(0.6, 0.1, (2000, 3))
    base, gain = hard + rng.normal(0, 0.01, hard.shape), 0.02 + rng.normal(0, 0.01, hard.shape)
    covered, width = 0, []
    for one, more in zip(base.tolist(), gain.tolist(), strict=True):
        other = [a + b for a, b in zip(one, more, strict=True)]
        d = Difference.of("a", seeds(*other), "b", seeds(*one))
        covered += 0.02 in d.interval
        width.append(d.interval.high - d.interval.low)
    assert 0.93 <= covered / 2000 <= 0.97
    # 2 × 4.303 × 0.01/√3 times c4; not paired it would be ten times as wide.
    assert np.mean(width) == pytest.approx(2 * 4.303 * 0.01 / math.sqrt(3) * 0.886, rel=0.05)


def test_only_seeds_that_both_finished_count():
    runs = [
        *(run("fedavg", s, v) for s, v in enumerate([0.5, 0.6, 0.7])),
        *(run("mifa", s, v) for s, v in enumerate([0.6, 0.8])),
        failed("mifa", 2),
    ]
    row = Comparison(runs).paired().row("mifa")
    assert row.difference.seeds == (0, 1)
    assert row.difference.mean == pytest.approx(0.15)
    assert row.seeds == (0, 1)
    apart = scored({"fedavg": {0: 0.5}, "mifa": {1: 0.5}}).paired()
    assert apart.row("mifa").difference is None


def test_the_interval_of_an_accuracy_ends_where_accuracies_do():
    comparison = scored({"fedavg": seeds(0.97, 0.95), "mifa": seeds(0.02, 0.05)})
    high, low = comparison.paired().rows
    assert high.interval.high == 1.0
    assert high.interval.low == pytest.approx(0.96 - 12.706 * 0.01, abs=1e-4)
    assert low.interval.low == 0.0
    losses = scored({"fedavg": seeds(0.97, 0.95)}, classes=False).paired().rows[0]
    assert losses.interval.high == pytest.approx(-0.96 + 12.706 * 0.01, abs=1e-4)


def test_one_seed_has_no_interval():
    row = scored({"fedavg": seeds(0.5), "mifa": seeds(0.6)}).paired().row("mifa")
    assert row.interval is row.difference.interval is None
    assert row.difference.won == 1
    assert not row.difference.clearly_above
    assert not row.difference.clearly_below
    assert not row.difference.constant


def test_each_is_shown_in_its_best_deployable_view():
    views = [
        {"server": 0.5, "averaged": 0.4, "mean": 0.9},
        {"server": 0.3, "averaged": 0.6, "mean": 0.9},
    ]
    runs = [run("fedpbc", k, 0, views=values) for k, values in enumerate(views)]
    row = Comparison([*runs, run("fedavg", 0, 0.1), run("fedavg", 1, 0.3)]).paired().row("fedpbc")
    # One view for all seeds, by their mean, not the best of each seed.
    assert (row.view, row.mean) == ("averaged", 0.5)
    assert row.difference.mean == pytest.approx(0.3)


def test_without_classes_a_lower_loss_is_better():
    values = {"fedavg": seeds(2.0, 3.0), "mifa": seeds(1.5, 2.4)}
    found = scored(values, classes=False).paired()
    assert not found.has_classes
    row = found.row("mifa")
    assert row.mean == pytest.approx(-1.95)
    assert row.difference.mean == pytest.approx(0.55)
    assert row.difference.won == 2


def test_equal_runs_and_equal_differences():
    values = {"fedavg": seeds(0.1, 0.2, 0.3), "same": seeds(0.1, 0.2, 0.3)}
    values["higher"] = seeds(0.1 + 0.2, 0.2 + 0.2, 0.3 + 0.2)
    found = scored(values).paired()
    same = found.row("same").difference
    assert (same.mean, same.interval.low, same.interval.high) == (0, 0, 0)
    assert (same.won, same.tied, same.constant) == (0, 3, True)
    higher = found.row("higher").difference
    assert higher.constant
    assert higher.clearly_above
    # A difference in the last bit is rounding.
    bit = Difference.of("a", seeds(0.1 + 0.2, 0.5), "b", seeds(0.3, 0.5))
    assert (bit.mean, bit.tied) == (0, 2)


def test_the_baseline():
    values = {"mifa": seeds(0.5, 0.6), "fedau": seeds(0.6, 0.8), "ceiling": seeds(0.9, 0.9)}
    comparison = scored(values)
    assert comparison.paired().baseline == "mifa"
    assert scored({"ceiling": seeds(0.9), **values}).paired().baseline == "mifa"
    assert scored({**values, "fedavg": seeds(0.2, 0.2)}).paired().baseline == "fedavg"
    found = comparison.paired("fedau")
    assert found.row("mifa").difference.mean == pytest.approx(-0.15)
    line = "baseline is 'fedau', but should be fedavg"
    with pytest.raises(InputError, match=f"^{line}$"):
        check_baseline("fedau", ["fedavg"])
    # Another algorithm is no misspelling.
    with pytest.raises(
        InputError, match=r"^baseline is 'fedau', but should be one of fedavg, mifa$"
    ):
        check_baseline("fedau", ["fedavg", "mifa"])
    with pytest.raises(InputError, match=r"baseline is 'fedaw'.*did you mean 'fedau'"):
        comparison.paired("fedaw")
    lost = Comparison([*comparison.runs, failed("scaffold", 0)]).paired("scaffold")
    assert lost.baseline == "mifa"
    assert lost.note.startswith("compared with mifa, not with scaffold, of which no run finished")
    assert scored({"ceiling": seeds(0.9)}).paired().baseline == "ceiling"
    assert Comparison([]).paired().baseline is None


def test_recovered_by_hand():
    values = {
        "fedavg": seeds(0.70, 0.72, 0.71),
        "mifa": seeds(0.74, 0.77, 0.77),
        "ceiling": seeds(0.79, 0.82, 0.82),
    }
    found = scored(values).paired()
    share = found.row("mifa").recovered
    # 0.04, 0.05, 0.06 of 0.09, 0.10, 0.11; worked out in recovered()'s example.
    assert share.value == pytest.approx(0.5)
    assert share.interval.low == pytest.approx(0.33474, abs=1e-5)
    assert share.interval.high == pytest.approx(0.59949, abs=1e-5)
    assert found.row("fedavg").recovered.value == 0
    assert found.row("ceiling").recovered.value == 1
    assert found.links_cost.mean == pytest.approx(0.1)
    # Whatever differences are shown to, what is recovered is FedAvg's.
    assert scored(values).paired("mifa").row("mifa").recovered == share


def test_recovered_is_undefined_without_need():
    values = {
        "fedavg": seeds(0.70, 0.72, 0.71),
        "mifa": seeds(0.74, 0.77, 0.77),
        "ceiling": seeds(0.70, 0.74, 0.69),
    }
    share = scored(values).paired().row("mifa").recovered
    assert share.value is None
    assert share.why_undefined == "the ceiling is not above fedavg by more than the noise"
    values.pop("fedavg")
    share = scored(values).paired().row("mifa").recovered
    assert share.why_undefined == "there is no result of fedavg to measure it from"
    values.pop("ceiling")
    assert scored(values).paired().row("mifa").recovered is None


def test_json_has_no_number_that_json_has_not():
    values = {"fedavg": seeds(1.7e308, 1e-308), "mifa": seeds(-1.7e308, 0), "ceiling": seeds(1, 2)}
    comparison = scored(values, classes=False)
    text = json.dumps(comparison.as_dict("mifa"), allow_nan=False)
    found = json.loads(text)
    assert found["paired"]["baseline"] == "mifa"
    assert found["paired"]["level"] == 0.95
    assert found["paired"]["value"] == "minus test_loss"
    assert found["verdict"]["sentence"]
    assert json.dumps(Comparison([]).as_dict(), allow_nan=False)


accuracy = st.integers(0, 2000).map(lambda hits: hits / 2000)
by_seed = st.dictionaries(st.integers(0, 6), accuracy, min_size=1, max_size=7)


@given(by_seed, by_seed)
def test_the_difference_the_other_way_is_its_negative(one, other):
    d, back = Difference.of("a", one, "b", other), Difference.of("b", other, "a", one)
    if d is None:
        assert back is None
        assert not one.keys() & other.keys()
        return
    assert back.mean == -d.mean
    assert back.seeds == d.seeds
    assert d.won + back.won + d.tied == len(d.seeds)
    assert (back.interval is None) == (len(d.seeds) == 1)
    if d.interval is not None:
        assert back.interval == d.interval.negated()


@given(by_seed, by_seed, st.dictionaries(st.integers(0, 6), st.floats(-5, 5), max_size=7))
def test_what_a_seed_adds_to_all_changes_no_difference(one, other, shifts):
    d = Difference.of("a", one, "b", other)
    moved = [{k: v + shifts.get(k, 0.0) for k, v in values.items()} for values in (one, other)]
    e = Difference.of("a", moved[0], "b", moved[1])
    if d is None:
        assert e is None
        return
    assert e.mean == pytest.approx(d.mean, abs=1e-9)
    assert (e.won, e.tied) == (d.won, d.tied)
    if d.interval is not None:
        assert e.interval.low == pytest.approx(d.interval.low, abs=1e-9)
        assert e.interval.high == pytest.approx(d.interval.high, abs=1e-9)


@pytest.mark.parametrize("wrong", [3, ["fedavg"], np.zeros(2), b"fedavg", ""])
def test_wrong_arguments_are_one_line(wrong):
    comparison = scored({"fedavg": seeds(0.5, 0.6)})
    for call in (comparison.paired, comparison.verdict, comparison.as_dict):
        with pytest.raises(InputError, match="baseline is "):
            call(wrong)
    with pytest.raises(InputError, match=r"allowed is .*a function of a row"):
        comparison.verdict(allowed=wrong)


def test_a_callable_that_takes_no_row_is_one_line():
    with pytest.raises(InputError, match=r"allowed is .*a function of a row"):
        scored({"fedavg": seeds(0.5, 0.6)}).verdict(allowed=int)
