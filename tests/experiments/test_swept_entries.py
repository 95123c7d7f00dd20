from __future__ import annotations

import pytest

from fedpbc import InputError
from fedpbc.experiments.entries import entries_of
from fedpbc.experiments.setting_names import CONFIGURATION
from fedpbc.experiments.swept_entries import (
    comparison_entries,
    sweep_values,
    swept_entries,
    with_ceilings,
)

UP = {"links": {"name": "always"}, "downlink": {"name": "always"}}


def ceilings(algorithms, sweep=None):
    """Return what the ceilings of a comparison override, by label."""
    entries, values = entries_of(algorithms), sweep_values(sweep or {})
    swept = swept_entries(entries, values)
    found = with_ceilings(entries, swept, values, CONFIGURATION)
    assert found[: len(swept)] == swept
    for entry in found[len(swept) :]:
        assert entry.algorithm == "fedavg"
        assert {key: entry.settings[key] for key in UP} == UP
    return {
        entry.label: {k: v for k, v in entry.settings.items() if k not in UP} | dict(entry.options)
        for entry in found[len(swept) :]
    }


def test_each_entry_once_for_each_pair_of_values():
    entries = entries_of(["fedpbc", "fedau:cutoff=5"])
    swept = swept_entries(entries, {"data.alpha": [0.1, 1.0], "clients": [8]})
    assert [entry.label for entry in swept] == [
        "fedpbc:data.alpha=0.1:clients=8",
        "fedpbc:data.alpha=1:clients=8",
        "fedau:cutoff=5:data.alpha=0.1:clients=8",
        "fedau:cutoff=5:data.alpha=1:clients=8",
    ]
    assert swept[3].options == {"cutoff": 5}
    assert swept[3].settings == {"data": {"alpha": 1.0}, "clients": 8}


def test_an_algorithms_option_is_swept_where_there_is_one():
    labels = [e.label for e in swept_entries(entries_of(["fedavg", "fedau"]), {"cutoff": [5, 9]})]
    assert labels == ["fedavg", "fedau:cutoff=5", "fedau:cutoff=9"]


@pytest.mark.parametrize(
    ("sweep", "line"),
    [
        (["data.alpha"], "sweep is 'data.alpha', but should be KEY=VALUE,VALUE"),
        (["=1,2"], "sweep is '=1,2'"),
        (["data.alpha="], r"sweep.data.alpha is \[\], but should be one value at least"),
        (["data.alpha=1,1"], "sweep.data.alpha is .*, but should be different values"),
        (["data.alpha=1", "data.alpha=2"], "sweep is 'data.alpha', but should be named once"),
        ({"data": {"alpha": 0.1}}, "sweep.data.alpha is 0.1, but should be a list of values"),
        (5, "sweep is 5, but should be a table of lists"),
        (
            ["alhpa=1,2"],
            "sweep.alhpa is unknown: use one of cutoff, over, rounds, .*, or another "
            "setting by its key, such as data.alpha; did you mean 'alpha'?",
        ),
        (
            ["seed=1,2"],
            "sweep.seed is unknown: all entries have the same seeds, which are set by "
            "--seeds 0,1,2",
        ),
        (
            ["beta=1,2"],
            "sweep.beta is unknown: fedpbc and fedau have no such option, but f3ast and "
            "fedstale have",
        ),
        (["cutoff=1,2"], "sweep: cutoff is also set by algorithms.fedau:cutoff=5"),
    ],
)
def test_a_wrong_sweep_is_one_line(sweep, line):
    with pytest.raises(InputError, match=f"^{line}"):
        swept_entries(entries_of(["fedpbc", "fedau:cutoff=5"]), sweep_values(sweep))


def test_too_many_combinations_are_refused():
    values = {"data.alpha": list(range(1, 200)), "clients": list(range(1, 200))}
    with pytest.raises(InputError, match="more than 10,000 combinations"):
        swept_entries(entries_of(["fedpbc"]), values)


def test_a_ceiling_has_what_fedavg_has_of_its_own():
    tuned = {"fedpbc": {}, "fedavg": {"train": {"learning_rate": 0.2}, "links": {"p": 0.1}}}
    assert ceilings(tuned) == {"ceiling": {"train": {"learning_rate": 0.2}}}
    assert ceilings(["fedpbc:learning_rate=0.2"]) == {"ceiling": {}}
    # The one that is called fedavg, or the only one.
    assert ceilings(["fedavg:learning_rate=0.2", "fedavg"]) == {"ceiling": {}}
    assert ceilings(["fedavg:learning_rate=0.2"]) == {"ceiling": {"train": {"learning_rate": 0.2}}}


def test_one_ceiling_for_each_value_that_changes_it():
    both = {
        "ceiling:data.alpha=0.1": {"data": {"alpha": 0.1}},
        "ceiling:data.alpha=1": {"data": {"alpha": 1}},
    }
    sweep = ["data.alpha=0.1,1", "links.p=0.2,0.5"]
    assert ceilings(["fedpbc"], sweep) == both
    assert ceilings(["fedpbc", "fedavg"], sweep) == both
    # As a comparison that is widened has them: already swept.
    labels = ["fedpbc:data.alpha=0.1", "fedpbc:data.alpha=1"]
    assert ceilings(labels) == both
    assert ceilings([label.replace("fedpbc", "fedavg") for label in labels]) == both
    # Neither links nor the options of other algorithms change it.
    assert ceilings(["fedau"], ["links.p=0.2,0.5", "cutoff=5,9"]) == {"ceiling": {}}


def test_links_are_not_swept_for_a_ceiling_that_is_there():
    entries = entries_of({"fedpbc": {}, "ceiling": {"name": "fedavg", **UP}})
    labels = [e.label for e in swept_entries(entries, {"links.p": [0.1, 1], "data.alpha": [1]})]
    assert labels == [
        "fedpbc:links.p=0.1:data.alpha=1",
        "fedpbc:links.p=1:data.alpha=1",
        "ceiling:data.alpha=1",
    ]


def test_a_ceiling_that_is_there_is_not_added_again():
    entries = entries_of({"fedpbc": {}, "ceiling": {"name": "fedavg", **UP}})
    assert with_ceilings(entries, entries, {}, CONFIGURATION) == entries
    # Under whatever label: of those in a folder that is widened by an entry.
    entries = entries_of(["fedavg:data.alpha=1", "ceiling:data.alpha=1"])
    assert with_ceilings(entries, entries, {}, CONFIGURATION) == entries
    assert ceilings(["fedavg", "ceiling:data.alpha=1"]) == {"ceiling": {}}


def test_a_ceiling_with_settings_is_an_entry_beside_the_plain_one():
    entries = comparison_entries(
        ["ceiling:learning_rate=0.3", "ceiling", "fedavg:local_steps=2"], {}, False, CONFIGURATION
    )
    assert {entry.label: entry.settings for entry in entries} == {
        "fedavg:local_steps=2": {"train": {"local_steps": 2}},
        "ceiling:learning_rate=0.3": {**UP, "train": {"learning_rate": 0.3}},
        "ceiling": {**UP, "train": {"local_steps": 2}},
    }
