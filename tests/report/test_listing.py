"""The listing, which does not import torch, agrees with the code that does."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest

from fedpbc.engines import ENGINES
from fedpbc.experiments.configuration import DataSection, General, TaskSection, TrainSection
from fedpbc.options import options_of
from fedpbc.report import listing
from fedpbc.simulation import views
from fedpbc.tasks.networks import MODELS


def test_models_are_complete():
    assert {
        name: (network.__doc__ or "").splitlines()[0] for name, network in MODELS.items()
    } == listing.MODELS


def test_defaults_of_local_training():
    options = options_of(TrainSection)
    assert {entry.split("=")[0] for entry in listing.TRAIN} == set(options)
    for entry in listing.TRAIN:
        # The other choices may follow the default in brackets.
        assert entry.split(" ")[0] == str(options[entry.split("=")[0]])
    [optimizers] = [entry for entry in listing.TRAIN if entry.startswith("optimizer")]
    choices = set(re.findall(r"\w+", optimizers)) - {"optimizer"}
    assert choices == {"sgd", "momentum", "adam"}


@pytest.mark.parametrize(
    ("listed", "section"), [(listing.GENERAL, General), (listing.DATA, DataSection)]
)
def test_defaults_of_general_and_data_options(listed, section):
    options = options_of(section)
    assert [entry.split("=")[0] for entry in listed] == list(options)
    for entry in listed:
        name, _, default = entry.partition("=")
        # 100 clients, or as many as a quadratic task has targets.
        if default != "…" and name != "clients":
            assert entry == str(options[name])


def test_engines_views_and_tasks_are_complete():
    assert set(listing.ENGINES) == {"auto", *ENGINES}
    assert tuple(listing.VIEWS) == views.VIEWS
    assert set(listing.TASKS) == set(get_args(get_type_hints(TaskSection)["name"]))


def test_defaults_of_probabilities():
    from fedpbc.simulation.build import ProbabilityOptions

    [entry] = [e for e in listing.list_choices()["options"] if e["name"] == "links, downlink"]
    options = options_of(ProbabilityOptions)
    assert entry["options"] == ["p=…", str(options["sigma"]), str(options["delta"])]
    assert set(options) == {"p", "sigma", "delta"}
