"""What is said without torch is true with it."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

from fedpbc.engines import ENGINES
from fedpbc.experiments.configuration import TaskSection, TrainSection
from fedpbc.options import options_of
from fedpbc.report import listing
from fedpbc.simulation import views
from fedpbc.tasks.networks import MODELS


def test_the_models_are_those_there_are():
    assert {
        name: (network.__doc__ or "").splitlines()[0] for name, network in MODELS.items()
    } == listing.MODELS


def test_the_local_training_has_these_defaults():
    options = options_of(TrainSection)
    assert {entry.split("=")[0] for entry in listing.TRAIN} == set(options)
    for entry in listing.TRAIN:
        # Behind the default there may be the other choices in brackets.
        assert entry.split(" ")[0] == str(options[entry.split("=")[0]])
    [optimizers] = [entry for entry in listing.TRAIN if entry.startswith("optimizer")]
    choices = set(re.findall(r"\w+", optimizers)) - {"optimizer"}
    assert choices == {"sgd", "momentum", "adam"}


def test_engines_views_and_tasks_are_those_there_are():
    assert set(listing.ENGINES) == {"auto", *ENGINES}
    assert tuple(listing.VIEWS) == views.VIEWS
    assert set(listing.TASKS) == set(get_args(get_type_hints(TaskSection)["name"]))


def test_probabilities_have_these_defaults():
    from fedpbc.simulation.build import ProbabilityOptions

    [entry] = [e for e in listing.everything()["options"] if e["name"] == "links, downlink"]
    options = options_of(ProbabilityOptions)
    assert entry["options"] == ["p=…", str(options["sigma"]), str(options["delta"])]
    assert set(options) == {"p", "sigma", "delta"}
