from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import InputError
from fedpbc.experiments.entries import (
    Entry,
    entries_of,
    entry_of,
    is_ceiling,
    merged,
)
from fedpbc.experiments.overrides import split_items
from fedpbc.experiments.setting_names import CONFIGURATION


def test_a_specification_resolves_options_then_settings_then_dotted_keys():
    entry = entry_of("fedau: cutoff = 5 :over=heard:learning_rate=0.20:data.alpha=1:rounds=7")
    assert entry == Entry(
        "fedau:cutoff=5:over=heard:learning_rate=0.2:data.alpha=1:rounds=7",
        "fedau",
        {"cutoff": 5, "over": "heard"},
        {"train": {"learning_rate": 0.2}, "data": {"alpha": 1}, "rounds": 7},
    )


def test_labels_are_the_same_however_a_setting_is_named():
    assert entry_of("fedavg:train.learning_rate=2e-1") == entry_of("fedavg:learning_rate=0.2")
    assert entry_of("fedavg:links.name=always").label == "fedavg:links=always"


def test_values_may_have_colons_and_commas():
    entry = entry_of("fedpbc:device=cuda:1:links.p=[0.1, 0.2]")
    assert entry.settings == {"device": "cuda:1", "links": {"p": [0.1, 0.2]}}
    assert entry.label == "fedpbc:device=cuda:1:links.p=[0.1,0.2]"
    assert split_items("fedpbc:links.p=[0.1,0.2], a:b='x,y',c") == [
        "fedpbc:links.p=[0.1,0.2]",
        "a:b='x,y'",
        "c",
    ]


def test_a_file_is_named_without_its_folder():
    entry = entry_of("fedpbc:links=trace:links.file=data/traces/phones.csv")
    assert entry.label == "fedpbc:links=trace:links.file=phones.csv"
    assert entry.settings["links"]["file"] == "data/traces/phones.csv"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["fedpcb"], "algorithms is 'fedpcb', but should be one of "),
        (["fedau:cutof=5"], "algorithms.fedau:cutof=5.cutof is unknown: use one of cutoff, "),
        (["fedau:5"], "algorithms is 'fedau:5', but should be NAME:OPTION=VALUE"),
        (["fedau:cutoff="], "algorithms is 'fedau:cutoff=', but should be a value after cutoff="),
        (["fedau:cutoff=5:cutoff=6"], "algorithms is .*, but should be with one value for cutoff"),
        (["fedau:seed=5"], "algorithms.fedau:seed=5.seed is unknown: all entries have the same "),
        (
            ["fedavg:cutoff=5"],
            "algorithms.fedavg:cutoff=5.cutoff is unknown: fedavg has no such "
            "option, but fedau has",
        ),
        (
            ["ceiling:nosuch=3"],
            "algorithms.ceiling:nosuch=3.nosuch is unknown: use one of rounds, ",
        ),
        ({"ceiling:nosuch=3": {}}, "algorithms.ceiling:nosuch=3.nosuch is unknown: use one of "),
        (
            ["ceiling:links.p=0.5"],
            "algorithms is 'ceiling:links.p=0.5', but should be without "
            "links.p: the ceiling has every link up",
        ),
        (["ceiling:5"], "algorithms is 'ceiling:5', but should be NAME:OPTION=VALUE"),
        (["celing"], "algorithms is 'celing', .*; did you mean 'ceiling'?"),
        (["fedau:plugins=a.py"], "algorithms.fedau:plugins=a.py.plugins is unknown"),
        (["fedau:algorithm.cutoff=5"], ".*algorithm.cutoff is unknown"),
        (["fedau", "fedau"], "algorithms is 'fedau', but should be different ones"),
        ([3], "algorithms is "),
        ([{"cutoff": 5}], "algorithms is .* tables with a name"),
        ([{"name": "fedau", "label": "../mine"}], "algorithms is '../mine'.* folder"),
        ([{"name": "fedau", "label": 5}], "algorithms is 5.* folder"),
        (["fedpbc:data.name=a/b"], "algorithms is 'fedpbc:data=a/b', but .* folder"),
        ({"mine": {}}, "algorithms is 'mine', but should be one of "),
        ({"mine": {"name": 5}}, "algorithms.mine.name is 5, but should be one of "),
        ({"mine": {"name": "fedau", "cutof": 5}}, "algorithms.mine.cutof is unknown"),
        ({"mine": {"name": "fedau", "train": 5}}, "algorithms.mine.train is 5, but should be a "),
        ({"fedau": 5}, r"algorithms.fedau is 5, but should be a table \[algorithms.fedau\]"),
        ("fedau", "algorithms is 'fedau', but should be a list"),
        (None, "algorithms is None"),
    ],
)
def test_a_wrong_entry_is_one_line_that_names_it(given, line):
    with pytest.raises(InputError, match=f"^{line}"):
        entries_of(given)


def test_tables_have_labels_options_and_sections():
    tables = {
        "fedpbc": {},
        "slow": {"name": "fedau", "cutoff": 5, "train": {"learning_rate": 0.01}},
        "fedavg": {"links": "always", "views": ["server"]},
    }
    entries = entries_of(tables)
    assert {entry.label: entry.table() for entry in entries} == {
        "fedpbc": {},
        "slow": {"name": "fedau", "cutoff": 5, "train": {"learning_rate": 0.01}},
        "fedavg": {"links": {"name": "always"}, "views": ["server"]},
    }


def test_a_table_whose_key_is_a_specification_adds_to_it():
    [entry] = entries_of({"fedau:cutoff=5": {"over": "heard"}})
    assert (entry.label, entry.options) == ("fedau:cutoff=5", {"cutoff": 5, "over": "heard"})


def test_a_specification_of_the_ceiling_is_fedavg_with_every_link_up():
    up = {"links": {"name": "always"}, "downlink": {"name": "always"}}
    expected = Entry(
        "ceiling:learning_rate=0.3", "fedavg", {}, {**up, "train": {"learning_rate": 0.3}}
    )
    assert entry_of("ceiling:train.learning_rate=0.3") == expected
    assert entries_of({"ceiling:learning_rate=0.3": {}}) == [expected]
    # As a search writes it, and with a label that is no specification.
    assert entries_of({expected.label: expected.table()}) == [expected]
    [entry] = entries_of({"ceiling:mine": {"rounds": 5}})
    assert (entry.algorithm, entry.settings) == ("fedavg", {**up, "rounds": 5})


def test_tables_without_labels_are_labelled_by_what_differs():
    tables = [
        {"name": "fedau", "cutoff": 5, "over": "heard"},
        {"name": "fedau", "cutoff": 50, "over": "heard"},
        {"name": "mifa", "memory": "client"},
        {"name": "fedavg", "learning_rate": 0.1, "label": "mine"},
    ]
    labels = [entry.label for entry in entries_of(tables)]
    assert labels == ["fedau:cutoff=5", "fedau:cutoff=50", "mifa", "mine"]
    with pytest.raises(InputError, match="'fedau', but should be different ones"):
        entries_of([{"name": "fedau"}, {"name": "fedau"}])


VALUES = st.one_of(
    st.integers(-1000, 1000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.sampled_from(["all", "heard", "a b"]),
    st.lists(st.floats(0, 1), max_size=3),
)


@given(st.dictionaries(st.sampled_from(["cutoff", "data.alpha", "links.p", "rounds"]), VALUES))
def test_a_label_is_a_specification_of_the_same_entry(values):
    entry = Entry("fedau", "fedau")
    for key, value in values.items():
        entry = entry.with_value(key, value)
    label = ":".join(["fedau", *(f"{k}={v}" for k, v in entry.pairs(CONFIGURATION).items())])
    again = entry_of(label)
    assert (again.options, again.settings) == (entry.options, entry.settings)
    assert again.label == label


def test_overrides_keep_the_rest_of_a_section_of_the_same_name():
    shared = {"links": {"name": "markov", "p": 0.5, "stay": 0.9}, "rounds": 5}
    assert merged(shared, {"links": {"p": 0.1}, "rounds": 6}) == {
        "links": {"name": "markov", "p": 0.1, "stay": 0.9},
        "rounds": 6,
    }
    # Of another scheme the probabilities stay, of one without them nothing.
    assert merged(shared, {"links": {"name": "bernoulli"}})["links"] == {
        "name": "bernoulli",
        "p": 0.5,
    }
    assert merged(shared, {"links": {"name": "always"}})["links"] == {"name": "always"}
    assert merged({"links": {"gamma": 1.0}}, {"links": {"name": "always"}}) == {
        "links": {"name": "always"}
    }
    assert merged({"links": "markov"}, {"links": {"p": 0.1}})["links"] == {
        "name": "markov",
        "p": 0.1,
    }
    assert shared["links"]["p"] == 0.5


def test_ceilings_are_told_by_their_label():
    labels = ("ceiling", "ceiling:data.alpha=1", "ceiling alpha=1", "ceilings", "my ceiling")
    assert [is_ceiling(label) for label in labels] == [True, True, True, False, False]
