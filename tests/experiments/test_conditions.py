from __future__ import annotations

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.conditions import Condition, condition_of
from fedpbc.experiments.entries import entry_of
from tests.scored_runs import run


def test_what_an_entry_is_run_on():
    assert entry_of("fedau:cutoff=5:learning_rate=0.2").condition == Condition()
    assert entry_of("fedau:data.alpha=0.1").condition == Condition("data.alpha=0.1")
    assert entry_of("fedau:rounds=9:links=markov").condition == Condition(
        "rounds=9", "links=markov"
    )
    assert str(
        condition_of({"data": {"name": "digits"}, "links": {"name": "markov", "p": 0.5}})
    ) == ("data=digits, links.p=0.5, links=markov")


def runs(label, condition, *values):
    from dataclasses import replace

    return [
        replace(run(label.partition(":")[0], seed, value), label=label, condition=condition)
        for seed, value in enumerate(values)
    ]


def ceiling(label, condition, *values):
    from dataclasses import replace

    return [
        replace(run("fedavg", seed, value), label=label, condition=condition)
        for seed, value in enumerate(values)
    ]


LOW, HIGH = Condition("data.alpha=0.1"), Condition("data.alpha=1")


def swept():
    return Comparison(
        [
            *runs("fedavg:data.alpha=0.1", LOW, 0.50, 0.52, 0.51),
            *runs("fedavg:data.alpha=1", HIGH, 0.80, 0.82, 0.81),
            *runs("mifa:data.alpha=0.1", LOW, 0.60, 0.62, 0.61),
            *runs("mifa:data.alpha=1", HIGH, 0.70, 0.72, 0.71),
            *ceiling("ceiling:data.alpha=0.1", LOW, 0.70, 0.72, 0.71),
            *ceiling("ceiling:data.alpha=1", HIGH, 0.90, 0.92, 0.91),
        ]
    )


def test_only_rows_of_one_condition_are_compared():
    parts = swept().by_condition()
    assert list(parts) == ["data.alpha=0.1", "data.alpha=1"]
    verdicts = {name: part.verdict() for name, part in parts.items()}
    assert verdicts["data.alpha=0.1"].best == "mifa:data.alpha=0.1"
    assert verdicts["data.alpha=1"].best == "fedavg:data.alpha=1"
    row = parts["data.alpha=0.1"].paired().row("mifa:data.alpha=0.1")
    assert abs(row.difference.mean - 0.1) < 1e-12
    assert abs(row.recovered.value - 0.5) < 1e-12


def test_a_ceiling_belongs_to_all_links():
    markov, cyclic = Condition("", "links=markov"), Condition("", "links=cyclic")
    parts = Comparison(
        [
            *runs("fedavg:links=markov", markov, 0.5, 0.6),
            *runs("fedavg:links=cyclic", cyclic, 0.5, 0.6),
            *ceiling("ceiling", Condition(), 0.8, 0.9),
        ]
    ).by_condition()
    assert [[r.label for r in part.runs if r.seed == 0] for part in parts.values()] == [
        ["fedavg:links=markov", "ceiling"],
        ["fedavg:links=cyclic", "ceiling"],
    ]


def test_a_baseline_by_the_name_of_its_algorithm():
    content = swept().as_dict("mifa")
    assert content["paired"] is None
    assert content["verdict"] is None
    assert [part["paired"]["baseline"] for part in content["conditions"]] == [
        "mifa:data.alpha=0.1",
        "mifa:data.alpha=1",
    ]
    assert swept().by_condition()["data.alpha=1"].baseline_label("nobody") is None


def test_one_condition_is_the_comparison_itself():
    one = Comparison(runs("fedavg", Condition(), 0.5, 0.6))
    assert one.by_condition() == {"": one}
    content = one.as_dict()
    assert content["paired"] == content["conditions"][0]["paired"]
