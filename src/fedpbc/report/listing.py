"""Everything a user can choose, for ``fedpbc list``: one line each, with its options."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from fedpbc import defaults
from fedpbc.algorithms import ALGORITHMS
from fedpbc.data.sources import SOURCES
from fedpbc.experiments.settings import DataSection, General, TrainSection
from fedpbc.experiments.tracking.choose import TRACKERS
from fedpbc.links import SCHEMES
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.options import options_of
from fedpbc.registration import summary_of

__all__ = ["Choice", "list_choices"]

# Repeated here, because listing does not import torch; tests compare them with the code.
MODELS = {
    "resnet18_gn": ("ResNet-18 with group normalisation, for small pictures.", ["groups=32"]),
    "resnet20_gn": ("ResNet-20 with group normalisation, for small pictures.", ["groups=8"]),
    "lstm": (
        "Embedding and LSTM layers, for texts; LEAF's has hidden=256.",
        ["embedding=8", "hidden=64", "layers=2"],
    ),
    "transformer": (
        "A small causal transformer, for texts.",
        ["width=64", "heads=4", "layers=2"],
    ),
    "mlp": ("One hidden layer of 64 units.", []),
    "softmax": ("Softmax regression.", []),
    "cnn_svhn": ("The paper's network for SVHN: two convolution blocks, FC128.", []),
    "cnn_cifar10": ("The paper's network for CIFAR-10: two convolution blocks, FC256, FC64.", []),
    "cnn_cinic10": (
        "The paper's network for CINIC-10: two convolution blocks, FC512, FC256, dropout.",
        [],
    ),
}
TASKS = {
    "classification": (
        "The samples of a data set, partitioned by Dirichlet(data.alpha), or clients' own."
    ),
    "app": "A model and data of your own: task.app, a file with model() and data(client).",
    "quadratic": "F_i(x) = ‖x − u_i‖²/2 with task.targets, a .npy file of clients × dimensions.",
}
ENGINES = {
    "auto": "Picks one of the others and prints which and why.",
    "serial": "One client after another, one thread.",
    "stacked": "All clients' models as one tensor; for small dense models.",
    "pool": "Worker processes, one per core.",
    "ray": "Ray tasks, on this machine or a cluster; extra [ray].",
}
VIEWS = {
    "server": "x, the server's own model.",
    "averaged": "Its moving average; a server can keep it.",
    "mean": "The mean of all clients' models (fedpbc, fedawe); only in simulations.",
    "reported": "The mean of each client's last report (fedpbc, fedawe); a server can keep it.",
    "corrected": (
        "The moving average, plus each client's last difference to it (fedpbc, fedawe); a server "
        "can keep it."
    ),
}
Choice = dict[str, Any]
"""A name, a one-line summary and its options; an algorithm also says whether the paper has it."""


def list_choices() -> dict[str, list[Choice]]:
    """Return everything that can be chosen, by kind."""
    return {
        "algorithms": [
            _choice(name, kind.summary(), options_of(kind.__init__)) | {"paper": kind.paper}
            for name, kind in ALGORITHMS.items()
        ],
        "links": [_choice(name, kind.summary, kind.options) for name, kind in SCHEMES.items()],
        "data": [_choice(name, source.summary, source.options) for name, source in SOURCES.items()]
        + [_choice("hub:OWNER/NAME", "Any data set of the hub, by the names of its columns")],
        "models": [
            {"name": name, "summary": summary, "options": options}
            for name, (summary, options) in MODELS.items()
        ]
        + _registered_models(),
        "tasks": _choices(TASKS),
        "engines": _choices(ENGINES),
        "views": _choices(VIEWS),
        "trackers": _choices(TRACKERS),
        "options": [
            _settings("(top)", "Options outside of sections.", General),
            _settings("data", "Which data, and how it is partitioned.", DataSection),
            _settings("train", "The local steps and η_g.", TrainSection),
            _settings(
                "links, downlink",
                "Where p_i comes from: given, or drawn from each client's classes.",
                ProbabilityOptions,
            ),
        ],
    }


def _registered_models() -> list[Choice]:
    """Return the networks of plugins; whoever registers one has imported torch."""
    registry = sys.modules.get("fedpbc.tasks.model_registry")
    if registry is None:
        return []
    return [
        _choice(name, summary_of(function), registry.model_options(function))
        for name, function in registry.MODELS.items()
        if name not in MODELS
    ]


def _choice(name: str, summary: str, options: Mapping[str, object] | None = None) -> Choice:
    texts = [str(option) for option in (options or {}).values()]
    return {"name": name, "summary": summary, "options": texts}


def _settings(name: str, summary: str, section: type) -> Choice:
    """A section with the defaults of its settings, and the other values where there are few."""
    entries, usual = {}, section()
    for option in options_of(section).values():
        default = defaults.CLIENTS if option.name == "clients" else getattr(usual, option.name)
        plain = get_args(option.annotation)[0] if get_args(option.annotation) else None
        choices = get_args(plain if get_origin(plain) is Literal else option.annotation)
        others = [c for c in choices if isinstance(c, str) and c != default]
        unset = default in (None, "")
        entry = f"{option.name}=…" if unset else str(replace(option, default=default))
        entries[option.name] = entry + (f" ({', '.join(others)})" if others else "")
    return _choice(name, summary, entries)


def _choices(summaries: Mapping[str, str]) -> list[Choice]:
    return [_choice(name, summary) for name, summary in summaries.items()]
