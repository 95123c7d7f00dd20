"""A study is a list of runs: labels, roles, conditions, sweeps, ceilings, seeds."""

from __future__ import annotations

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import from_table
from fedpbc.study import spec as spec_module
from fedpbc.study.spec import Spec
from fedpbc.study.study import Study


def labels(study: Study) -> list[str]:
    return [variant.label for variant in study.variants]


def of(algorithms: object, **more: object) -> Study:
    return Study.of({"algorithms": algorithms, "data": "digits", "clients": 5, **more})


def test_without_anything_it_is_the_papers_comparison():
    study = Study.of({})
    assert labels(study)[:2] == ["fedpbc", "fedavg"]
    assert (len(study.variants), study.seeds) == (7, (0, 1, 2))


def test_each_variant_is_validated_once(monkeypatch):
    calls = []
    complete = spec_module._completed
    monkeypatch.setattr(spec_module, "_completed", lambda v: calls.append(1) or complete(v))
    study = of(["fedpbc", "fedau:cutoff=5"], links="markov", seeds="0-4", ceiling=True)
    assert len({run.id for run in study.runs()}) == 15
    assert len(calls) == 3


def test_an_entry_has_options_and_settings_of_its_own():
    study = of(["fedau:cutoff=5:learning_rate=0.20:links=markov", "fedavg:links.p=0.5"])
    assert labels(study) == ["fedau:cutoff=5:learning_rate=0.2:links=markov", "fedavg:links.p=0.5"]
    runs = study.runs()
    assert runs[0].spec.algorithm["cutoff"] == 5
    assert runs[0].spec.train.learning_rate == 0.2
    assert (runs[0].spec.links.name, runs[-1].spec.links["p"]) == ("markov", 0.5)


def test_tables_by_label_are_the_same_runs_as_texts():
    tables = {
        "fedpbc": {},
        "short": {"name": "fedau", "cutoff": 5, "train": {"learning_rate": 0.2}, "rounds": 3},
    }
    texts = ["fedpbc", "fedau:cutoff=5:learning_rate=0.2:rounds=3"]
    assert [r.id for r in of(tables).runs()] == [r.id for r in of(texts).runs()]
    assert labels(of(tables)) == ["fedpbc", "short"]


def test_a_table_without_a_label_has_that_of_its_text():
    tables = [{"name": "fedau", "cutoff": 5}, {"name": "fedau", "train": {"learning_rate": 0.2}}]
    assert labels(of(["fedpbc", *tables])) == [
        "fedpbc",
        "fedau:cutoff=5",
        "fedau:learning_rate=0.2",
    ]


def test_a_sweep_is_the_product_of_its_values_and_makes_conditions():
    study = of(
        ["fedpbc", "fedau"], sweep=["data.alpha=0.1,1", "cutoff=5,9"], ceiling=True, seeds=[4]
    )
    runs = {run.label: run for run in study.runs()}
    assert list(runs) == [
        "fedpbc:alpha=0.1",
        "fedpbc:alpha=1",
        *("fedau:alpha=0.1:cutoff=5", "fedau:alpha=0.1:cutoff=9"),
        *("fedau:alpha=1:cutoff=5", "fedau:alpha=1:cutoff=9"),
        *("ceiling:alpha=0.1", "ceiling:alpha=1"),
    ]
    assert runs["ceiling:alpha=1"].condition == runs["fedau:alpha=1:cutoff=5"].condition
    assert runs["ceiling:alpha=1"].role == "ceiling"
    assert {run.condition for run in runs.values()} == {"data.alpha=0.1", "data.alpha=1"}


def test_a_ceiling_belongs_to_all_conditions_that_differ_in_links_only():
    runs = of(["fedpbc"], sweep={"links": ["markov", "cyclic:cycle=20"]}, ceiling=True).runs()
    assert list(dict.fromkeys((run.label, run.condition) for run in runs)) == [
        ("fedpbc:links=markov", "links=markov"),
        ("fedpbc:links=cyclic:cycle=20", "links=cyclic:cycle=20"),
        ("ceiling", ""),
    ]
    assert {run.problem for run in runs} == {""}


@pytest.mark.parametrize("algorithms", [["fedpbc", "ceiling"], {"fedpbc": {}, "ceiling": {}}])
def test_the_ceiling_may_be_named_among_the_algorithms(algorithms):
    assert labels(of(algorithms)) == ["fedpbc", "ceiling"]


def test_the_ceiling_has_fedavgs_settings_but_not_its_links():
    study = of(["fedpbc", "fedavg:learning_rate=0.3:links.p=0.5"], links="bernoulli", ceiling=True)
    spec = study.runs()[-1].spec
    assert spec.train.learning_rate == 0.3
    assert (str(spec.links), str(spec.downlink), spec.algorithm.name) == (*["always"] * 2, "fedavg")


def test_a_ceiling_with_settings_of_its_own_is_a_ceiling():
    study = of({"fedpbc": {}, "ceiling": {"train": {"learning_rate": 0.5}}}, ceiling=True)
    assert [(v.label, v.role) for v in study.variants][-1] == ("ceiling", "ceiling")
    assert study.runs()[-1].spec.train.learning_rate == 0.5
    with pytest.raises(InputError, match="the ceiling has every link up"):
        of(["ceiling:links=markov"])


def test_links_that_are_objects_count_by_their_content():
    up = np.ones((4, 5), dtype=bool)
    one, two = (of(["fedavg"], links=up, rounds=4).runs()[0] for _ in range(2))
    assert one.id == two.id
    assert one.objects["links"] is up
    assert of(["fedavg"], links=from_table(up), rounds=4).runs()[0].id == one.id
    assert of(["fedavg"], links=~up, rounds=4).runs()[0].id != one.id


def test_what_differs_with_the_seed_is_validated_for_each():
    study = of(["fedavg"], seeds=[3, 4])
    runs = study.runs(lambda seed: {"clients": 10 + seed})
    assert [run.spec.clients for run in runs] == [13, 14]


def test_reports_on_disk_are_for_those_that_have_reports():
    runs = of(["fedpbc", "fedavg"], reported="disk", seeds=[0]).runs()
    assert [run.execution.reported for run in runs] == ["disk", "memory"]


def test_a_run_of_a_study_is_the_run_on_its_own():
    run = of(["fedau:cutoff=5"], seeds=[7]).runs()[0]
    table = {"algorithm": "fedau:cutoff=5", "data": "digits", "clients": 5, "seed": 7}
    assert run.id == Spec.of(table).id


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"algorithms": ["fedavg:cutoff=5"]}, "fedavg has no such option, but fedau has"),
        ({"algorithms": ["fedab"]}, "did you mean 'fedau'?"),
        ({"algorithms": ["fedavg", "fedavg"]}, "each has a label of its own"),
        ({"algorithms": "fedavg"}, "a list of names, or tables [algorithms.LABEL]"),
        ({"algorithms": ["fedavg"], "algorithm": "fedau"}, "name it among the algorithms"),
        ({"algorithms": ["fedavg:seed=3"]}, "all entries have the same seeds"),
        ({"algorithms": {"a": 3}}, "a table [algorithms.a]"),
        ({"algorithms": {"a": {"name": "fedau", "cutoff": 0}}}, "algorithm.cutoff is 0"),
        ({"algorithms": {"a": {"name": "fedau", "rounds": 0}}}, "algorithms.a: rounds is 0"),
        ({"algorithms": ["fedavg"], "sweep": ["cutoff=5"]}, "sweep.cutoff is unknown: fedavg has"),
        ({"algorithms": ["fedavg:rounds=3"], "sweep": ["rounds=5"]}, "rounds is also set by"),
        ({"sweep": ["rounds"]}, "KEY=VALUE,VALUE"),
        ({"sweep": {"rounds": [5, 5]}}, "different values"),
        ({"seeds": "4-1"}, "a range from low to high: 1-4"),
        ({"ceiling": 3}, "ceiling is 3, but should be true or false"),
    ],
)
def test_errors_say_what_is_right(given, line):
    with pytest.raises(InputError) as error:
        Study.of(given).runs()
    assert line in str(error.value)


def test_what_every_entry_replaces_is_an_error():
    links = {"algorithms": ["fedpbc:links=markov", "mifa:links=always"], "links": {"p": 0.5}}
    with pytest.raises(InputError, match=r"links\.p is 0\.5, but .*'always' does not use it"):
        Study.of(links).runs()
    named = {**links, "links": {"name": "bernoulli", "p": 0.5}}
    with pytest.raises(
        InputError, match=r"links\.p is 0\.5, but every entry chooses its own links"
    ):
        Study.of(named).runs()


def test_what_is_typed_and_every_entry_has_itself_is_an_error():
    given = {"algorithms": ["fedpbc:links=markov", "mifa:links.p=0.3"], "links": "bernoulli"}
    study = Study.of(given)
    study.check_typed(["links", "algorithm", "rounds"])
    with pytest.raises(InputError, match="seed has no effect here: --seeds says which"):
        study.check_typed(["seed"], {"seed": "--seeds says which"})
    own = Study.of({"algorithms": ["fedpbc:links=markov", "mifa:links=cyclic"], "links": "always"})
    with pytest.raises(InputError, match=r"links is always, but .* have values of their own"):
        own.check_typed(["links"])


def test_momentum_can_be_swept_by_its_short_name():
    study = Study.of({"algorithms": ["fedavg"], "seeds": [0], "sweep": {"momentum": [0, 0.9]}})
    assert [(r.label, str(r.spec.train.optimizer)) for r in study.runs()] == [
        ("fedavg:momentum=0", "sgd"),
        ("fedavg:momentum=0.9", "sgd:momentum=0.9"),
    ]
