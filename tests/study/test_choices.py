"""One syntax for a thing with options: texts, tables and choices are the same."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.choices import Choice, TextOfFile, specification
from fedpbc.errors import InputError
from fedpbc.study import registries

NAMES = {
    "algorithms": registries.algorithms,
    "links": registries.uplinks,
    "data": registries.data_sets,
    "models": registries.models,
    "optimizers": registries.optimizers,
    "schedules": registries.schedules,
    "engines": registries.engines,
    "aggregations": registries.aggregations,
}


@pytest.mark.parametrize("kind", NAMES)
def test_every_choice_is_the_same_as_its_text_and_its_table(kind):
    registry = NAMES[kind]
    for name in registry.names():
        options = registry.options(registry.find(name)).values()
        if not any(option.required for option in options):
            choice = registry.parse(name)
            assert registry.parse(str(choice)) == registry.parse(choice.table()) == choice
            assert str(choice) == name
            assert pickle.loads(pickle.dumps(choice)) == choice


@given(st.integers(1, 10**6), st.sampled_from(["all", "heard"]))
def test_the_shortest_text_says_everything(cutoff, over):
    choice = registries.algorithms.parse({"name": "fedau", "over": over, "cutoff": cutoff})
    assert registries.algorithms.parse(str(choice)) == choice
    assert hash(registries.algorithms.parse(str(choice))) == hash(choice)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("fedau:cutoff=5", {"name": "fedau", "cutoff": 5}),
        ("bernoulli:p=[0.1, 0.9]", {"name": "bernoulli", "p": [0.1, 0.9]}),
        ("ray:address=ray://h:10001", {"name": "ray", "address": "ray://h:10001"}),
        ("hub:owner/name:target=y", {"name": "hub:owner/name", "target": "y"}),
        ("table:file=C:/t.csv", {"name": "table", "file": "C:/t.csv"}),
    ],
)
def test_a_colon_separates_only_options(text, table):
    assert specification(text) == table


def test_a_file_in_a_text_is_looked_up_beside_the_file_of_the_text(tmp_path, monkeypatch):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "t.csv").write_text("1,0\n")
    monkeypatch.chdir(tmp_path)
    text = TextOfFile("table:file=t.csv", tmp_path / "links")
    choice = registries.uplinks.parse(text)
    assert Path(choice["file"]) == tmp_path / "links" / "t.csv"
    assert choice.kept == {"file": "input"}
    assert str(choice) == "table:file=t.csv"


@pytest.mark.parametrize(
    ("registry", "given", "line"),
    [
        ("algorithms", "fedau:cutof=5", "algorithm.cutof is unknown: use one of cutoff, over; did"),
        ("algorithms", "fedavg:cutoff=5", "fedavg has no such option: fedau has"),
        ("algorithms", "fedau:cutoff=0", "algorithm.cutoff is 0, but should be at least 1"),
        ("algorithms", "fedau:cutoff", "should be NAME:OPTION=VALUE, such as fedau:cutoff=50"),
        ("algorithms", "fedau:cutoff=", "with a value after cutoff="),
        ("algorithms", 3, "algorithm is 3, but should be a name"),
        ("links", "always:p=0.3", "choose a scheme with --links bernoulli"),
        ("links", "bernoulli:p=0.3:sigma=3", "links.p, which is given: leave one of them out"),
        ("links", "table", "links.file is missing: it has no default"),
        ("optimizers", "adam:momentum=0.9", "adam has no such option: sgd has"),
        ("optimizers", "momentum", "sgd:momentum=0.9"),
        ("optimizers", "Adamm", "did you mean 'Adam'?"),
        ("engines", "serial:workers=2", "serial has no such option: pool and ray have"),
        ("aggregations", "mean:trim=0.1", "mean has no such option: trimmed_mean has"),
        ("schedules", "constant:rounds=9", "constant has no such option: inverse, exponential,"),
        ("data", "shakespeare:alpha=1", "shakespeare has clients of its own"),
    ],
)
def test_errors_say_what_is_right(registry, given, line):
    with pytest.raises(InputError) as error:
        NAMES[registry].parse(given)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("always:sigma=10", "links.sigma is 10.0, but links 'always' does not use it"),
        ("bernoulli:p=0.3:delta=0.02", "it is only for drawing links.p, which is given"),
        ("group:mean_away=20", "links.away is 0: leave it out, or set links.away, too"),
        ("group:late=0.1:away=0:mean_away=9", "links.away is 0"),
    ],
)
def test_what_is_not_read_is_refused_also_at_its_default(given, line):
    with pytest.raises(InputError) as error:
        registries.uplinks.parse(given)
    assert line in str(error.value)


def test_only_what_is_read_is_there():
    assert registries.uplinks.parse("bernoulli:p=0.3").table() == {"name": "bernoulli", "p": 0.3}
    assert {"mean_away", "late_rounds"}.isdisjoint(registries.uplinks.parse("group").options)
    assert registries.uplinks.parse("group:away=0.1")["mean_away"] == 20


def test_the_length_of_a_traces_rounds_is_written_down(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("# round_seconds = 30\nclient,online_from_s,online_until_s\n0,0,90\n")
    trace = registries.uplinks.parse({"name": "trace", "file": str(file)})
    assert trace["round_seconds"] == 30
    assert str(trace) == "trace:file=log.csv"
    assert registries.uplinks.parse(trace.table()) == trace
    assert registries.uplinks.parse({**trace.table(), "round_seconds": 60})["round_seconds"] == 60


def test_momentum_0_is_what_sgd_does():
    assert registries.optimizers.parse("sgd:momentum=0") == registries.optimizers.parse("sgd")


def test_a_choice_is_not_its_text():
    assert Choice("fedavg") != "fedavg"
