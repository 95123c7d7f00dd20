"""The listing, which does not import torch, agrees with the code that does."""

from __future__ import annotations

from typing import get_args, get_type_hints

import fedpbc
from fedpbc.data import SOURCES
from fedpbc.engines import ENGINES
from fedpbc.experiments.settings import DataSection, General, TaskSection, TrainSection
from fedpbc.options import options_of
from fedpbc.report import listing
from fedpbc.simulation import views
from fedpbc.tasks.model_registry import model_options
from fedpbc.tasks.networks import MODELS


def test_models_are_complete():
    assert {
        name: (
            (network.__doc__ or "").splitlines()[0],
            [str(option) for option in model_options(network).values()],
        )
        for name, network in MODELS.items()
    } == listing.MODELS


def test_options_of_data_sets_are_listed():
    listed = {entry["name"]: entry["options"] for entry in listing.list_choices()["data"]}
    assert listed["cifar100"] == ["labels=fine"]
    assert listed["shakespeare"] == ["length=32"]
    assert listed["fashion"] == []
    assert "hub:OWNER/NAME" in listed


def test_models_and_data_sets_of_plugins_are_listed():
    def my_net(classes, *, width: int = 3):
        """A network."""

    def my_data(*, window: int = 4):
        """Some data."""

    fedpbc.register_model(my_net)
    fedpbc.register_dataset(my_data)
    try:
        choices = listing.list_choices()
    finally:
        del MODELS["my_net"], SOURCES["my_data"]
    assert {"name": "my_net", "summary": "A network.", "options": ["width=3"]} in choices["models"]
    assert {"name": "my_data", "summary": "Some data.", "options": ["window=4"]} in choices["data"]


def test_defaults_and_choices():
    listed = {entry["name"]: entry["options"] for entry in listing.list_choices()["options"]}
    assert listed["data"] == [
        *("name=fashion", "dir=…", "alpha=0.1", "train_samples=5000"),
        "weigh=volume (clients)",
    ]
    assert listed["links, downlink"] == ["p=…", "sigma=10.0", "delta=0.02"]
    assert {"rounds=500", "clients=100", "ray_address=…", "reported=memory (disk)"} < {
        *listed["(top)"]
    }
    assert {"decay=true", "optimizer=sgd (adam, adamw)", "global_learning_rate=1.0"} < {
        *listed["train"]
    }
    for name, section in (("(top)", General), ("data", DataSection), ("train", TrainSection)):
        assert [entry.split("=")[0] for entry in listed[name]] == list(options_of(section))


def test_engines_views_and_tasks_are_complete():
    assert set(listing.ENGINES) == {"auto", *ENGINES}
    assert tuple(listing.VIEWS) == views.VIEWS
    assert set(listing.TASKS) == set(get_args(get_type_hints(TaskSection)["name"])) - {"python"}
