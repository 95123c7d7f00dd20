from __future__ import annotations

import pytest

from fedpbc import Comparison
from fedpbc.experiments.advice.constraints import Constraints
from fedpbc.experiments.advice.recommendation import recommend
from tests.scored_runs import failed, run, scored, seeds


def recommended(values, costs=None, constraints=None, **more):
    settings = {name: {"train.learning_rate": 0.2} for name in values}
    return recommend(scored(values, costs, **more), settings, constraints or Constraints(), 1000)


def test_the_clear_best_is_recommended_whatever_it_costs():
    found = recommended(
        {"fedavg": seeds(0.70, 0.71, 0.72), "mifa": seeds(0.80, 0.81, 0.82)},
        {"mifa": {"server": 101}},
    )
    assert (found.algorithm, found.view, found.settings) == (
        "mifa",
        "server",
        {"train.learning_rate": 0.2},
    )
    assert found.mean == pytest.approx(0.81)
    assert found.over_baseline.mean == pytest.approx(0.1)
    assert found.why[0] == "It is the best of 2 over 3 seeds, by more than the noise."
    assert found.server_bytes == 4 * 101 * 1000
    assert found.device_bytes == 0
    [alternative] = found.alternatives
    assert (alternative.limit, alternative.algorithm) == (
        "at most 2 models on the server",
        "fedavg",
    )
    assert alternative.loses == pytest.approx(0.1)


def test_what_cannot_be_told_apart_goes_to_the_cheaper():
    values = {"fedavg": seeds(0.800, 0.810, 0.790), "fedpbc": seeds(0.802, 0.808, 0.793)}
    found = recommended(values, {"fedpbc": {"steps": 1500}})
    assert found.algorithm == "fedavg"
    assert found.over_baseline is None
    assert found.why[0] == (
        "Nothing compared is clearly better than plain FedAvg: fedpbc is not better by more than "
        "the noise or half a point over 3 seeds."
    )
    assert any("fedpbc is within noise" in change for change in found.changes)


def test_what_is_more_than_half_a_point_below_is_not_recommended_for_its_price():
    """The interval includes 0, but the best is three points higher in the mean."""
    values = {"fedavg": seeds(0.70, 0.80, 0.75), "mifa": seeds(0.80, 0.79, 0.75)}
    found = recommended(values, {"mifa": {"server": 101}})
    assert found.algorithm == "mifa"
    assert set(found.verdict.within_noise) == {"fedavg", "mifa"}
    assert found.why[:2] == (
        "It has the highest mean of 2 over 3 seeds.",
        "fedavg is more than half a point below it, but that may be noise: so few seeds cannot "
        "tell them apart.",
    )
    assert any("which includes no gain" in line for line in found.why)


def test_fedavg_is_best():
    found = recommended({"fedavg": seeds(0.82, 0.83), "mifa": seeds(0.70, 0.71)})
    assert found.why == (
        "Nothing compared is clearly better than plain FedAvg: none of the 2 compared has a higher "
        "mean over 2 seeds.",
    )
    assert found.alternatives == ()


def test_fedavg_is_best_and_links_cost_it_a_lot():
    values = {"fedavg": seeds(0.50, 0.51, 0.52), "mifa": seeds(0.40, 0.41, 0.42)}
    found = recommended({**values, "ceiling": seeds(0.90, 0.91, 0.92)})
    assert found.recovered is None  # It is what the others are measured by.
    assert found.why[1].startswith(
        "Failing links cost it 40.0 points all the same (95 % interval 40.0 to 40.0): so much"
    )
    near = recommended({**values, "ceiling": seeds(0.51, 0.50, 0.53)})
    assert len(near.why) == 1


def test_good_enough_is_said_only_where_failing_links_cost_hardly_anything():
    values = {"fedavg": seeds(0.82, 0.83, 0.81), "mifa": seeds(0.70, 0.71, 0.72)}
    enough = recommended({**values, "ceiling": seeds(0.822, 0.831, 0.812)})
    assert enough.why[0].startswith("Plain FedAvg is good enough on these links: none of the 2")
    costly = recommended({**values, "ceiling": seeds(0.92, 0.93, 0.91)})
    assert costly.why[0].startswith("Nothing compared is clearly better than plain FedAvg: none")
    assert costly.why[1].startswith("Failing links cost it 10.0 points all the same")


def test_without_any_upload_nothing_was_learned():
    values = {"fedau": seeds(0.1, 0.1), "fedavg": seeds(0.1, 0.1), "mifa": seeds(0.1, 0.1)}
    found = recommended(values, sent=0)
    # Equally good and equally cheap: nobody is told to change to another algorithm.
    assert (found.algorithm, found.verdict.best) == ("fedavg", "fedavg")
    assert found.why[0].startswith("No upload arrived in any run, so nothing was learned")
    assert not any("nothing was learned" in line for line in recommended(values).why)


def test_a_gain_where_links_cost_nothing_has_another_reason():
    values = {"fedavg": seeds(0.70, 0.71, 0.72), "mifa": seeds(0.80, 0.81, 0.82)}
    found = recommended({**values, "ceiling": seeds(0.701, 0.709, 0.721)})
    assert found.algorithm == "mifa"
    assert any("cost FedAvg nothing that shows" in line for line in found.why)
    little = recommended({**values, "ceiling": seeds(0.702, 0.712, 0.7225)})
    assert any("cost FedAvg hardly anything" in line for line in little.why)
    damaged = recommended({**values, "ceiling": seeds(0.90, 0.91, 0.92)})
    assert not any("nothing to repair" in line for line in damaged.why)


def test_a_large_cost_within_noise_is_not_nothing():
    values = {"fedavg": seeds(0.78, 0.79), "mifa": seeds(0.815, 0.835)}
    found = recommended({**values, "ceiling": seeds(0.825, 0.845)})
    assert found.algorithm == "mifa"
    assert not any(
        "nothing to repair" in line or "nothing that shows" in line for line in found.why
    )
    assert found.why[-1].startswith(
        "With every link up FedAvg is better by 5.0 (95 % interval −1.4 to 11.4): so few seeds "
        "cannot tell what failing links cost"
    )


def test_good_enough_is_measured_by_the_best_not_by_the_cheapest_of_the_best():
    means = {"fedavg": 0.800, "fedau": 0.8047, "mifa": 0.808, "ceiling": 0.803}
    noise = (-0.0002, 0.0, 0.0002)
    values = {name: seeds(*(mean + e for e in noise)) for name, mean in means.items()}
    # Fedau is within noise of mifa.
    values["fedau"] = seeds(0.8107, 0.7987, 0.8047)
    found = recommended(values)
    assert (found.verdict.best, found.algorithm) == ("mifa", "mifa")


def test_fedavg_is_good_enough_where_links_cost_nothing_and_half_a_point_is_gained():
    values = {"fedavg": seeds(0.700, 0.710, 0.720), "fedau": seeds(0.704, 0.714, 0.7241)}
    found = recommended({**values, "ceiling": seeds(0.701, 0.709, 0.721)})
    assert found.verdict.winner == "fedau"  # which is clearly better
    assert found.algorithm == "fedavg"
    [why] = found.why
    assert why.startswith(
        "Plain FedAvg is good enough on these links: with every link up it would be better by 0.0"
    )
    assert "so there is nothing to repair. fedau is better by 0.4 over 3 seeds" in why
    # Clearly above, but by a fifth of a point: the same sentence, and none that contradicts it.
    little = recommended({**values, "ceiling": seeds(0.702, 0.712, 0.7225)})
    assert (little.algorithm, len(little.why)) == ("fedavg", 1)
    # Where links do harm, or it is not known whether they do, what is clearly better is taken.
    assert recommended({**values, "ceiling": seeds(0.80, 0.81, 0.82)}).algorithm == "fedau"
    assert recommended(values).algorithm == "fedau"
    more = {**values, "fedau": seeds(0.706, 0.716, 0.7261)}
    assert recommended({**more, "ceiling": seeds(0.701, 0.709, 0.721)}).algorithm == "fedau"


def test_limits_are_kept():
    values = {
        "fedavg": seeds(0.70, 0.71),
        "mifa": seeds(0.80, 0.81),
        "scaffold": seeds(0.75, 0.76),
        "fedpbc": seeds(0.85, 0.86),
    }
    costs = {
        "mifa": {"server": 101},
        "scaffold": {"client": 1},
        "fedpbc": {"steps": 1500, "client": 1},
    }
    assert recommended(values, costs).algorithm == "fedpbc"
    for limits, name in (
        ({"max_local_steps": 200}, "mifa"),
        ({"max_local_steps": 200, "max_server_models": 2}, "scaffold"),
        ({"max_local_steps": 200, "max_server_models": 2, "client_state": False}, "fedavg"),
    ):
        assert recommended(values, costs, Constraints(**limits)).algorithm == name
    assert recommended(values, costs, Constraints(max_local_steps=1)) is None


def test_the_interval_is_that_of_the_view_that_keeps_the_limits():
    """The moving average is better and steadier, but needs another model on the server."""

    def fedavg(seed, server, averaged):
        made = run("fedavg", seed, 0, views={"server": server, "averaged": averaged})
        made.cost["models_on_server"] = {"server": 1, "averaged": 2}
        return made

    comparison = Comparison([fedavg(0, 0.60, 0.800), fedavg(1, 0.62, 0.801)])
    found = recommend(comparison, {}, Constraints(max_server_models=1), 1000)
    assert (found.view, found.mean) == ("server", pytest.approx(0.61))
    assert found.interval.low == pytest.approx(0.61 - 12.706 * 0.01, abs=1e-4)
    [row] = comparison.paired(allowed=Constraints(max_server_models=1).allows).rows
    assert (row.view, row.costs.models_on_server) == ("server", 1)
    [row] = comparison.paired().rows
    assert (row.view, row.costs.models_on_server) == ("averaged", 2)


def test_alternatives_keep_the_limits_that_were_given():
    values = {
        "fedavg": seeds(0.70, 0.71),
        "scaffold": seeds(0.75, 0.76),
        "fedpbc": seeds(0.85, 0.86),
        "mifa": seeds(0.80, 0.81),
    }
    costs = {
        "scaffold": {"client": 1},
        "fedpbc": {"steps": 1500, "client": 1},
        "mifa": {"server": 101},
    }
    found = recommended(values, costs, Constraints(max_server_models=2))
    by_limit = {each.limit: each.algorithm for each in found.alternatives}
    assert by_limit == {
        "no state on the devices": "fedavg",
        "no more local steps than FedAvg": "scaffold",
    }


def test_what_is_recovered_needs_a_ceiling():
    values = {"fedavg": seeds(0.70, 0.71, 0.69), "mifa": seeds(0.75, 0.76, 0.74)}
    assert recommended(values).recovered is None
    found = recommended({**values, "ceiling": seeds(0.80, 0.81, 0.79)})
    share, interval = found.recovered
    assert share == pytest.approx(0.5)
    assert interval.low <= 0.5 <= interval.high
    assert found.algorithm == "mifa"


def test_the_interval_is_over_the_seeds_of_the_mean():
    """Each failed with a seed that the other one finished: they share seeds 2 and 3."""
    results = [run("fedavg", 1, 0.1), run("fedavg", 2, 0.6), run("fedavg", 3, 0.7)]
    results += [run("mifa", 0, 0.1), run("mifa", 2, 0.5), run("mifa", 3, 0.55)]
    found = recommend(
        Comparison([*results, failed("fedavg", 0), failed("mifa", 1)]), {}, Constraints(), 10
    )
    assert found.verdict.seeds == (2, 3)
    assert found.mean == pytest.approx(0.65)
    # 0.65 ± 12.706·0.0707/√2, cut off at 0 and 1.
    assert (found.interval.low, found.interval.high) == pytest.approx((0.0147, 1.0), abs=1e-3)


def test_one_seed_is_a_hint():
    found = recommended({"fedavg": seeds(0.7), "mifa": seeds(0.8)})
    assert found.interval is None
    assert found.why[0] == "Only one seed fitted into the budget, so this is only a hint."
    assert found.why[1] == "It has the highest mean of 2 over 1 seed."


def test_losses():
    found = recommended(
        {"fedavg": seeds(3.0, 3.1, 2.9), "mifa": seeds(1.0, 1.1, 0.9)}, classes=False
    )
    assert (found.algorithm, found.mean) == ("mifa", pytest.approx(-1.0))
    assert found.has_classes is False
