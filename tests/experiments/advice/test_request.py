from __future__ import annotations

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.advice.link_facts import examine_links
from fedpbc.experiments.advice.request import AdviceRequest, prepare_values

TRACE = "client,online_from_s,online_until_s\n" + "".join(f"d{k},0,{60 + k}\n" for k in range(7))


def test_a_trace_is_a_fleet_of_all_its_devices(tmp_path):
    file = tmp_path / "links.csv"
    file.write_text(TRACE)
    links = {"links": {"name": "trace", "file": str(file)}}
    shared, tuned, fixed = prepare_values(links)
    assert (shared["clients"], shared["rounds"], tuned, fixed) == (7, 300, {}, False)
    assert prepare_values({**links, "clients": 3, "rounds": 9})[0]["clients"] == 3
    many = "client,online_from_s,online_until_s\n" + "".join(f"d{k},0,9\n" for k in range(400))
    file.write_text(many)
    assert prepare_values(links)[0]["clients"] == 300
    # 1,437 training samples: with 300 clients none could spare one to be scored on.
    digits = prepare_values({**links, "data": "digits"})[0]
    assert digits["clients"] == 1437 // 16
    AdviceRequest(*prepare_values({**links, "data": "digits"})[:2]).check()


def test_a_tuned_file_brings_the_settings():
    tables = {"fedavg": {"train": {"learning_rate": 0.2}}, "fedau": {"cutoff": 5}}
    shared, tuned, fixed = prepare_values({"data": "digits", "rounds": 9, "algorithms": tables})
    assert (tuned, fixed) == (tables, True)
    assert AdviceRequest(shared, tuned).algorithms() == ["fedavg", "fedau"]


def test_a_tuned_file_may_have_labels_and_a_ceiling():
    """'fedpbc tune --algorithms fedavg,mifa:memory=client --ceiling' writes both."""
    every = {"name": "always"}
    tables = {
        "fedavg": {"train": {"learning_rate": 0.2}},
        "mifa:memory=client": {"name": "mifa", "memory": "client"},
        "ceiling": {"name": "fedavg", "links": every, "train": {"learning_rate": 0.4}},
    }
    shared, tuned, _ = prepare_values({"data": "digits", "rounds": 9, "algorithms": tables})
    request = AdviceRequest(shared, tuned)
    assert request.algorithms() == ["fedavg", "mifa:memory=client"]
    assert request.algorithm_of("mifa:memory=client") == "mifa"
    assert tuned["ceiling"]["train"] == {"learning_rate": 0.4}
    request.check()
    # Its memory is on the clients: what it costs depends on its options.
    cost = examine_links(request).costs["mifa:memory=client"]
    assert (cost.models_on_server, cost.models_on_client) == (2, 1)


def test_the_ceiling_may_have_settings_in_its_label():
    label = "ceiling:learning_rate=0.4"
    shared, tuned, _ = prepare_values({"data": "digits", "algorithms": {"fedavg": {}, label: {}}})
    assert tuned["ceiling"]["train"] == {"learning_rate": 0.4}
    AdviceRequest(shared, tuned).check()
    with pytest.raises(InputError, match=f"'{label}', but should be left out: advice has one"):
        prepare_values({"algorithms": {"fedavg": {}, "ceiling": {}, label: {}}})


def test_settings_for_other_data_or_links_are_refused():
    tables = {"fedavg:data.alpha=1": {"name": "fedavg", "data": {"alpha": 1.0}}}
    with pytest.raises(InputError, match="should be on the data and links that are asked about"):
        prepare_values({"algorithms": tables})


def test_all_algorithms_but_those_that_need_probabilities():
    names = AdviceRequest({"data": "digits"}).algorithms()
    assert names[0] == "fedavg"
    assert "fedavg_known" not in names
    assert len(names) == len(set(names)) == 17


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_a_budget_of_nothing(minutes):
    with pytest.raises(InputError, match="minutes is"):
        AdviceRequest({}, minutes=minutes)


@pytest.mark.parametrize("tables", [3, {"nobody": {}}, {"fedau": 3}])
def test_wrong_tables(tables):
    with pytest.raises(InputError, match=r"algorithms(\.fedau)? is"):
        prepare_values({"algorithms": tables})


def test_plugins_that_are_none():
    with pytest.raises(InputError, match=r"plugins is 1\.5, but should be a valid list"):
        prepare_values({"plugins": 1.5})


def test_training_that_is_no_table():
    with pytest.raises(InputError, match=r"train is 3, but should be a table \[train\]"):
        prepare_values({"algorithm": {"name": "fedau"}, "train": 3})
