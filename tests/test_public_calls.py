"""Wrong arguments of the public calls are an InputError of one line, whatever they are."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import fedpbc
from fedpbc import theory
from fedpbc.algorithms import FedPBC, find_algorithm
from fedpbc.engines import SerialEngine
from fedpbc.errors import FedpbcError
from fedpbc.experiments.tuning.directory import TuningDirectory
from fedpbc.links import class_rates, find_scheme, from_data, from_table

WRONG: list[Any] = [
    *(None, "", "a", "a\0b", "~nosuchuser/x", "9" * 5000, b"x", 1j, object(), int),
    *(-1, 0, 1, 2, True, 0.5, 1.5, math.nan, math.inf, 1e308, 5e-324, 10**12, 2**63, 10**400),
    *([], [[]], [1], [0.5, 0.2], [[1, 2], [3]], ["a"], (0, 1), {}, {"a": 1}, {"name": 3}, {1: 2}),
    *(np.zeros((0, 3)), np.zeros((2, 2)), np.array(["a"]), torch.zeros(3)),
]


def task() -> fedpbc.Quadratic:
    return fedpbc.Quadratic([[1.0], [2.0]])


def supervised(**options: Any) -> fedpbc.Supervised:
    x, y = torch.zeros(40, 4), torch.arange(40) % 3
    given = {"module": nn.Linear(4, 3), "train": (x, y), "test": (x, y), "clients": 4}
    return fedpbc.Supervised(**{**given, **options})


def simulation(**options: Any) -> fedpbc.Simulation:
    algorithm = FedPBC(fedpbc.ServerInit(torch.zeros(1, dtype=torch.float64), 2))
    given = {"task": task(), "algorithm": algorithm, "engine": SerialEngine(task())}
    return fedpbc.Simulation(**{**given, "uplink": TABLE, **options})


def simulate(**options: Any) -> fedpbc.Result:
    given = {"task": task(), "algorithm": "fedavg", "links": "always", "engine": "serial"}
    return fedpbc.simulate(**{**given, "rounds": 2, **options})


def compare(**options: Any) -> fedpbc.Comparison:
    given = {"make_task": lambda seed: task(), "algorithms": ["fedavg"], "seeds": [0]}
    return fedpbc.compare(**{**given, "links": "always", "rounds": 1, **options})


def tune(**options: Any) -> None:
    """What is wrong shows before the search begins."""
    values = {"data": "digits", "clients": 3, "rounds": 4, "links": "always"}
    given = {"values": values, "algorithms": ["fedavg"], "candidates": 1, "jobs": 1}
    begun = fedpbc.FedpbcError("begun")
    if {"budget", "minutes"} & {*options}:
        del given["candidates"]
    with patch.object(TuningDirectory, "run", side_effect=begun):
        fedpbc.tune(**{**given, **options})


@cache
def result() -> fedpbc.Result:
    return simulate()


@cache
def comparison() -> Any:
    return compare(algorithms=["fedavg", "fedpbc"], seeds=[0, 1])


TABLE = from_table([[1, 0], [1, 1]])
SETTING = fedpbc.Setting(seed=1, clients=2, rounds=3, base_probabilities=np.array([0.5, 0.5]))
SPLIT = fedpbc.Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1]))
LAYOUT = fedpbc.Layout(("w",), ((2,),))
UPDATE = fedpbc.Update(0, torch.zeros(2), torch.zeros(2))

# The call, and its arguments as they may be.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Supervised": (
        supervised,
        dict.fromkeys(("module", "train", "test", "partition", "loss", "training", "normalise"))
        | {"clients": 4, "alpha": 0.1, "seed": 0, "crop_padding": 0, "flip": False}
        | {"train_samples": 5, "device": "cpu", "validation": None, "metrics": None}
        | {"test_clients": None, "weigh": "volume", "perplexity": False},
    ),
    "Quadratic": (fedpbc.Quadratic, {"targets": [[1.0]], "training": None, "seed": 0}),
    "LocalTraining": (
        fedpbc.LocalTraining,
        {"local_steps": 1, "batch_size": 2, "learning_rate": 0.1, "decay": True}
        | {"optimizer": "sgd", "momentum": 0.9, "proximal": 0.0},
    ),
    "rate": (fedpbc.LocalTraining().rate, {"t": 1}),
    "simulate": (
        simulate,
        dict.fromkeys(("task", "algorithm", "links", "downlink", "seed", "global_lr"))
        | dict.fromkeys(("evaluate_every", "views", "reported", "engine", "workers", "ray_address"))
        | dict.fromkeys(("track", "rounds", "out", "group", "aggregation"))
        | {"progress": None},
    ),
    "compare": (
        compare,
        dict.fromkeys(("make_task", "algorithms", "seeds", "links", "rounds"))
        | dict.fromkeys(("sweep", "ceiling", "out", "jobs", "progress")),
    ),
    "tune": (
        tune,
        dict.fromkeys(("values", "algorithms", "ceiling", "space", "candidates", "budget"))
        | dict.fromkeys(("minutes", "seeds", "validation", "out", "jobs")),
    ),
    "plot": (lambda **given: result().plot(**given), {"key": None, "views": None}),
    "report": (lambda **given: result().report(**given), {"path": "a.html"}),
    "to_pandas": (lambda **given: comparison().to_pandas(**given), {"evaluations": False}),
    "report of a comparison": (
        lambda **given: comparison().report(**given),
        {"path": "b.html", "baseline": None},
    ),
    "algorithm_of": (lambda **given: comparison().algorithm_of(**given), {"label": "fedavg"}),
    "paired": (lambda **given: comparison().paired(**given), {"baseline": None}),
    "as_dict": (lambda **given: comparison().as_dict(**given), {"baseline": None}),
    "Simulation": (
        simulation,
        dict.fromkeys(("task", "algorithm", "engine", "uplink", "downlink", "evaluate_every"))
        | {"views": None},
    ),
    "Setting": (
        fedpbc.Setting,
        {"seed": 1, "clients": 2, "rounds": 3, "base_probabilities": [0.5, 0.5]}
        | {"stream": "uplink", "option": "links", "class_shares": None, "samples": None},
    ),
    "Timetable": (fedpbc.Timetable, {"packed": np.zeros((2, 1), dtype=np.uint8), "clients": 2}),
    "draw": (
        fedpbc.Timetable.draw,
        {"scheme": "cyclic", "setting": SETTING, "options": {"cycle": 3}},
    ),
    "from_table": (from_table, {"table": [[1]]}),
    "up": (TABLE.up, {"t": 0}),
    "next_contact": (TABLE.next_contact, {"client": 0, "after": 0}),
    "shares": (TABLE.shares, {"clients": None}),
    "block": (TABLE.block, {"rounds": 1, "clients": 1}),
    "probabilities": (TABLE.probabilities, {"start": 0}),
    "ServerInit": (fedpbc.ServerInit, {"x0": torch.zeros(2), "clients": 2, "global_lr": 1.0}),
    "FedPBC": (FedPBC, {"init": fedpbc.ServerInit(torch.zeros(2), 2)}),
    "mean": (fedpbc.mean, {"vectors": [torch.zeros(2)]}),
    "advance": (fedpbc.advance, {"base": torch.zeros(2), "update": UPDATE, "scale": 1.0}),
    "Update": (fedpbc.Update, {"client": 0, "start": torch.zeros(1), "end": torch.zeros(1)}),
    "register_algorithm": (fedpbc.register_algorithm, {"algorithm": FedPBC}),
    "find_algorithm": (find_algorithm, {"name": "fedavg"}),
    "find_scheme": (find_scheme, {"name": "always"}),
    "link_scheme": (fedpbc.link_scheme, {"function": None}),
    "dirichlet_partition": (
        fedpbc.dirichlet_partition,
        {"labels": [0, 1, 2, 0], "clients": 2, "alpha": 0.1, "seed": 0, "classes": None},
    ),
    "load": (fedpbc.load, {"name": "digits", "folder": None}),
    "Split": (fedpbc.Split, {"inputs": SPLIT.inputs, "labels": SPLIT.labels, "clients": None}),
    "DataSet": (
        fedpbc.DataSet,
        {"name": "a", "train": SPLIT, "test": SPLIT, "classes": ("a", "b"), "crop_padding": 0}
        | {"client_names": (), "vocabulary": 0, "next_token": False},
    ),
    "register_dataset": (fedpbc.register_dataset, {"function": 3, "model": "a", "settings": None}),
    "register_model": (fedpbc.register_model, {"function": 3}),
    "build_model": (
        fedpbc.build_model,
        {"name": "mlp", "shape": (8, 8, 1), "classes": 10, "seed": 0}
        | {"vocabulary": 0, "every_position": False},
    ),
    "Layout": (fedpbc.Layout, {"names": ("w",), "shapes": ((2,),)}),
    "parts": (LAYOUT.parts, {"flat": torch.zeros(2)}),
    "fill": (LAYOUT.fill, {"parameters": [torch.zeros(2)], "flat": torch.zeros(2)}),
    "flatten": (LAYOUT.flatten, {"parameters": [torch.zeros(2)]}),
    "Evaluation": (fedpbc.Evaluation.from_dict, {"entries": {"test_loss": 1.0}}),
    "Metrics": (fedpbc.Metrics.from_dict, {"line": None}),
    "Comparison": (fedpbc.Comparison, {"runs": []}),
    "Config": (fedpbc.Config.from_dict, {"values": {"rounds": 1}}),
    "start_run": (fedpbc.start_run, {"config": None, "path": "runs/a"}),
    "resume_run": (fedpbc.resume_run, {"path": "runs/none"}),
    "load_view": (fedpbc.load_view, {"folder": "runs/none", "view": "server"}),
    "class_rates": (class_rates, {"seed": 0, "classes": 3, "sigma": 1.0}),
    "from_data": (from_data, {"seed": 0, "class_shares": [[0.5, 0.5]], "sigma": 1.0, "delta": 0.1}),
}
OF_THEORY = {
    **{"step_size": 0.1, "local_steps": 3, "rho": 0.5, "sigma": 1.0, "zeta": 1.0, "beta": 0.0},
    **{"mean_squared_gradient": 1.0, "gap": 1.0, "rounds": 5, "lipschitz": 1.0, "p": [0.5, 0.5]},
    **{"targets": [0.0, 1.0], "models": [[1.0], [2.0]], "active": [0], "clients": 2, "c": 0.5},
    **{"timetable": [[1, 0]]},
}


def assert_one_line(call: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    for value in WRONG:
        try:
            call(**{**given, name: value})
        except FedpbcError as error:
            message = str(error)
        else:
            # Some of these values are right for some of the arguments.
            continue
        if len(message.splitlines()) != 1 or len(message) > 1200:
            pytest.fail(f"{name}={value!r:.40}: {message!r}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "argument"), [(call, name) for call, (_, given) in CALLS.items() for name in given]
)
def test_wrong_arguments(call, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, given = CALLS[call]
    defaults = {"Supervised", "simulate", "compare", "Simulation", "tune"}
    assert_one_line(function, {} if call in defaults else given, argument)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", theory.__all__)
def test_wrong_arguments_of_the_theory(function):
    call = getattr(theory, function)
    given = {name: OF_THEORY[name] for name in inspect.signature(call).parameters}
    for name in given:
        assert_one_line(call, given, name)


@pytest.mark.parametrize("every", [1.5, math.nan, math.inf, 0, -1, True, "10", None, 10**30])
def test_rounds_between_evaluations(every):
    for call in (simulate, simulation):
        with pytest.raises(fedpbc.InputError, match=r"^evaluate_every is "):
            call(evaluate_every=every)


@pytest.mark.parametrize("wrong", [each for each in WRONG if each is not None and each is not int])
def test_what_is_called_after_a_round_but_is_no_function(wrong):
    with pytest.raises(fedpbc.InputError, match="on_round is "):
        simulate(on_round=wrong)


def test_links_that_are_called_but_have_no_name():
    with pytest.raises(fedpbc.InputError, match="links is Identity"):
        simulate(links=nn.Identity())


def test_a_number_of_samples_below_zero():
    with pytest.raises(fedpbc.InputError, match=r"^train_samples is -1, but should be at least 0$"):
        supervised(train_samples=-1)


def test_numbers_of_numpy_are_numbers():
    assert supervised(clients=np.int64(5), alpha=np.float32(0.5), flip=np.bool_(False)).clients == 5
    assert simulate(rounds=np.int64(3), evaluate_every=np.int32(3)).metrics[-1].round == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("option", ["learning_rate", "proximal"])
def test_numbers_beyond_the_precision_of_the_model(optimizer, option):
    training = fedpbc.LocalTraining(**{option: 1e39, "optimizer": optimizer})
    line = rf"^train.{option} is 1e\+39, but should be at most 3.40282e\+38, the largest .* float32"
    with pytest.raises(fedpbc.InputError, match=line):
        supervised(training=training)
    # In double precision it fits.
    assert fedpbc.Quadratic([[1.0]], training=training).clients == 1


@pytest.mark.parametrize("wrong", [object(), [["a"]], np.zeros(2), "nope", -1])
def test_a_view_or_module_that_a_result_does_not_have(wrong):
    result = simulate()
    with pytest.raises(fedpbc.InputError, match="view is "):
        result.accuracy(wrong)
    with pytest.raises(fedpbc.InputError, match="module is "):
        result.load_into(wrong, "server")
    if not isinstance(wrong, str):
        with pytest.raises(fedpbc.InputError, match="path is "):
            fedpbc.verify_run(wrong)


@pytest.mark.parametrize("option", ["watcher", "group", "track", "trust"])
def test_an_option_of_resuming_that_is_wrong(tmp_path, option):
    config = fedpbc.Config.from_dict({"data": "digits", "clients": 3, "rounds": 1})
    fedpbc.start_run(config, tmp_path / "run")
    with pytest.raises(fedpbc.InputError, match=f"{option} is "):
        fedpbc.resume_run(tmp_path / "run", **{option: [["a"]]})


@pytest.mark.parametrize("option", ["watcher", "group", "overwrite"])
def test_an_option_of_a_run_that_is_wrong(tmp_path, option):
    config = fedpbc.Config.from_dict({"data": "digits", "clients": 3, "rounds": 1})
    with pytest.raises(fedpbc.InputError, match=f"{option} is "):
        fedpbc.start_run(config, tmp_path / "run", **{option: [["a"]]})
    assert not (tmp_path / "run").exists()
