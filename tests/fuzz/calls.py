"""Python calls: the public functions by their signatures, with wrong arguments."""

from __future__ import annotations

import inspect
from functools import cache
from random import Random
from typing import Any

from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template, write_inputs

HEAD = """\
import numpy as np
import torch
from pathlib import Path
from torch import nn
import fedpbc
from fedpbc import *
from fedpbc import theory
from fedpbc.links import from_table
from fedpbc.theory.link_statistics import link_statistics

class Mine(Exception): ...
def fail(*args, **more): raise Mine
class Odd:
    def __repr__(self): raise Mine
samples = torch.randn(24, 3), torch.arange(24) % 3
quadratic = Quadratic([[0.0], [1.0], [5.0]])
links = {"name": "bernoulli", "p": 0.5}
def result(): return simulate(quadratic, "fedavg", links, rounds=2)
def compared():
    names = ["fedavg", "fedau:cutoff=3"]
    return compare(lambda seed: quadratic, names, [0, 1], links=links, rounds=2, ceiling=True)
def learned():
    task = Supervised(nn.Linear(3, 3), samples, samples, clients=3)
    return simulate(task, "fedavg", links, rounds=2)
try:
"""
TAIL = """
except Mine:
    pass
"""
PASSIVE = {
    # Base classes and protocols, errors, and values that the package makes and passes on.
    *("Algorithm", "Engine", "Task", "DivergedError", "FedpbcError", "InputError"),
    *(
        "MissingExtraError",
        "WorkerError",
        "Comparison",
        "Config",
        "Evaluation",
        "Layout",
        "Metrics",
    ),
    *("Result", "Round", "Segment", "ServerInit", "Simulation", "Timetable", "Trained", "Update"),
    # Of an algorithm's inner loop.
    *("advance", "mean"),
    # Decorators; the plugins try them.
    *("link_scheme", "register_algorithm"),
}
METHODS = (
    "Config.from_dict",
    "Timetable.draw",
    "from_table",
    "from_table([[1, 0], [1, 1]]).up",
    "from_table([[1, 0], [1, 1]]).active",
    "from_table([[1, 0], [1, 1]]).next_contact",
    "from_table([[1, 0], [1, 1]]).shares",
    "from_table([[1, 0], [1, 1]]).block",
    "result().accuracy",
    "learned().accuracy",
    "learned().load_into",
    "load('digits').fingerprint",
    "link_statistics",
    "compared().paired",
    "compared().verdict",
    "compared().row",
    "compared().curve",
    "compared().as_dict",
    "compared().plot",
    "compared().to_pandas",
    "compared().report",
    "learned().plot",
    "learned().to_pandas",
    "learned().report",
)
"""Public methods worth a try."""
RIGHT: dict[str, tuple[str, ...]] = {
    "active": ("[0, 1]", "[]"),
    "algorithm": ("'fedpbc'", "'mifa'", "{'name': 'fedau', 'cutoff': 3}"),
    "algorithms": (
        "['fedavg']",
        "['fedpbc', 'fedavg']",
        "['fedau:cutoff=5', {'name': 'fedau', 'cutoff': 3}]",
        "{'mine': {'name': 'fedau', 'cutoff': 3}, 'fedavg': {'rounds': 1}}",
    ),
    "allowed": ("None", "lambda row: True"),
    "alpha": ("0.5", "1"),
    "baseline": ("None", "'fedavg'", "'ceiling'"),
    "base_probabilities": ("[0.5, 0.2, 0.9]", "None"),
    "batch_size": ("4",),
    "beta": ("0.0", "0.5"),
    "c": ("0.5", "1.0"),
    "budget": ("None", "20"),
    "candidates": ("1", "2"),
    "ceiling": ("True", "False"),
    "classes": ("3", "('a', 'b', 'c')"),
    "class_shares": ("[[0.5, 0.5], [1, 0], [0, 1]]", "None"),
    "client": ("1",),
    "clients": ("3",),
    "config": ("Config.from_dict({'data': 'digits', 'clients': 3, 'rounds': 2})",),
    "crop_padding": ("0",),
    "decay": ("True", "False"),
    "deploy_view": ("None", "'server'", "'averaged'"),
    "device": ("'cpu'",),
    "downlink": ("'always'", "{'name': 'bernoulli', 'p': 0.5}"),
    "engine": ("'serial'", "'auto'", "'stacked'"),
    "evaluate_every": ("1", "2"),
    "evaluate_every_at_end": ("None", "1"),
    "flip": ("False",),
    "folder": ("'run'",),
    "gap": ("1.0",),
    "global_lr": ("1.0", "0.5"),
    "group": ("None",),
    "inputs": ("np.zeros((4, 8, 8, 1), dtype=np.uint8)",),
    "jobs": ("1",),
    "label": ("'fedavg'", "'fedau:cutoff=3'"),
    "labels": ("[0, 1, 2, 0, 1, 2]", "np.arange(30) % 3"),
    "learning_rate": ("0.1",),
    "links": ("links", "[[1, 0, 1], [0, 1, 1]]"),
    "lipschitz": ("1.0", "[1.0, 2.0]"),
    "local_steps": ("1", "2"),
    "loss": ("nn.functional.cross_entropy",),
    "make_task": ("lambda seed: Quadratic([[0.0], [1.0], [5.0]], seed=seed)",),
    "mean_squared_gradient": ("1.0",),
    "metrics": ("None", "{}"),
    "minutes": ("None",),
    "models": ("[[1.0, 2.0], [3.0, 4.0]]",),
    "module": ("nn.Linear(3, 3)",),
    "momentum": ("0.5",),
    "name": ("'digits'",),
    "normalise": ("None",),
    "on_round": ("lambda done, metrics: None",),
    "optimizer": ("'sgd'", "'adam'"),
    "options": ("{}",),
    "out": ("None", "'new'", "Path('new')"),
    "overwrite": ("True", "False"),
    "p": ("[0.5, 0.2, 0.9]", "np.array([0.1, 1.0])"),
    "partition": ("None", "[[0, 1], [2, 3], [4, 5]]"),
    "path": ("Path('run')",),
    "progress": ("None", "False"),
    "proximal": ("0.0", "0.1"),
    "ray_address": ("''",),
    "reported": ("'memory'", "'disk'"),
    "rho": ("0.5", "0.0"),
    "rounds": ("2", "3"),
    "round_seconds": ("60.0", "None"),
    "samples": ("[5, 2, 9]", "None"),
    "scheme": ("'bernoulli'", "'cyclic'", "'group'", "'by_volume'", "'label_cyclic'"),
    "seed": ("0", "7"),
    "seeds": ("[0]", "(0, 1)", "'0-1'", "range(2)"),
    "setting": ("Setting(seed=1, clients=2, rounds=3, base_probabilities=[0.5, 0.9])",),
    "shape": ("(8, 8, 1)",),
    "sigma": ("1.0",),
    "space": ("None", "{'learning_rate': [0.1, 0.05]}"),
    "step_size": ("0.05",),
    "sweep": ("{'rounds': [1, 2]}", "{'learning_rate': [0.1, 0.05]}", "{'cutoff': [3, 5]}", "{}"),
    "table": ("[[1, 0], [1, 1]]",),
    "targets": ("[[0.0], [1.0], [5.0]]", "np.arange(6.0).reshape(3, 2)"),
    "task": ("quadratic",),
    "test": ("samples",),
    "timetable": ("[[1, 0], [1, 1]]",),
    "track": ("()", "None"),
    "train": ("samples",),
    "train_samples": ("0", "10"),
    "training": ("None", "LocalTraining(local_steps=1)"),
    "trust": ("False",),
    "validation": ("0.0", "0.25"),
    "values": ("{'data': 'digits', 'rounds': 2, 'clients': 3}",),
    "view": ("'server'",),
    "views": ("None", "['server']"),
    "watcher": ("None",),
    "workers": ("0",),
    "zeta": ("1.0",),
}
SPECIAL = {
    ("build_model", "name"): ("'mlp'", "'softmax'"),
    ("fedavg_limit", "targets"): ("[[0.0], [1.0], [5.0]]",),
    ("fedavg_limit", "p"): ("[0.5, 0.2, 0.9]",),
    ("DataSet", "train"): ("load('digits').train",),
    ("DataSet", "test"): ("load('digits').test",),
    ("DataSet", "classes"): ("tuple('0123456789')",),
    ("start_run", "path"): ("Path('new')",),
    ("Split", "labels"): ("np.array([0, 1, 2, 0])",),
    ("load", "folder"): ("None",),
    ("report", "path"): ("'page.html'", "Path('new/page.html')"),
    ("plot", "key"): ("None", "'test_accuracy'", "'test_loss'"),
    ("to_pandas", "evaluations"): ("True", "False"),
    ("link_statistics", "timetable"): ("from_table([[1, 0, 1], [1, 1, 0]] * 20)",),
    ("link_statistics", "class_shares"): ("[[0.5, 0.5], [1, 0], [0, 1]]", "None"),
    ("from_table([[1, 0], [1, 1]]).up", "t"): ("1",),
    ("from_table([[1, 0], [1, 1]]).active", "t"): ("1",),
    ("from_table([[1, 0], [1, 1]]).next_contact", "after"): ("0", "-1"),
}
ALWAYS = {"rounds", "seeds", "clients"}
"""Their defaults are those of a real experiment."""
WRONG = (
    *("None", "-1", "0", "1.5", "float('nan')", "float('inf')", "-float('inf')", "10 ** 400"),
    *(
        "2 ** 63",
        "True",
        "''",
        "'x'",
        "'\\x1b[31m'",
        "'\\u202ex'",
        "'a' * 5000",
        "'x[/b]'",
        "'\\0'",
    ),
    *("b'x'", "[]", "()", "{}", "set()", "object()", "Odd()", "[[]]", "[[1, 2], [3]]", "[None]"),
    *("['a']", "[['a']]", "{'name': 3}", "{'name': 'bernoulli', 'p': 'x'}", "{'name': 'nope'}"),
    *("{1: 2}", "{'nope': 1}", "[float('nan')]", "[1e400]", "[-1]", "[2]", "[0.5, 1.5]", "[1, 1]"),
    *("np.zeros((0, 3))", "np.zeros(0)", "np.zeros(())", "np.zeros((2, 2, 2))", "np.array(['a'])"),
    *("np.array([1 + 2j])", "np.array([object()])", "np.full((3, 2), np.nan)", "np.float32('inf')"),
    *("np.int64(-1)", "np.int64(2)", "np.float64(0.5)", "np.ones((3, 3))", "np.full(3, 1e300)"),
    *(
        "np.datetime64('2020-01-01')",
        "torch.zeros(3)",
        "torch.tensor(float('nan'))",
        "torch.ones(2, 3)",
    ),
    *(
        "torch.zeros(3).to_sparse()",
        "torch.zeros(2, device='meta')",
        "fail",
        "lambda *a, **k: None",
    ),
    *("Path('nope')", "Path('run')", "range(3)", "iter([0, 1])", "int", "Odd", "nn.Linear(1, 1)"),
    *("nn.Identity()", "(samples[0],)", "(samples[0], samples[1][:3])", "(samples[1], samples[0])"),
    *("(samples[0] * float('nan'), samples[1])", "__import__('datetime').date(2020, 1, 1)", "..."),
    *("(lambda l: l.append(l) or l)([])", "1e-310", "5e-324", "1e308", "3.5e38", "-0.0", "1 + 0j"),
    *("{'p': 0.5}", "Fraction(1, 3)", "Decimal('0.1')", "slice(3)", "quadratic", "links", "fedpbc"),
    *("(samples[0], -samples[1])", "(samples[0].int(), samples[1])", "from_table([[1, 0, 1]])"),
    *("['fedau:cutoff=-1']", "['fedavg:x\\x1b=1']", "{'../x': {'name': 'fedavg'}}", "'3-1'"),
    *("{'cutoff': [1, 1]}", "{'x': fail}", "{'learning_rate': 'x'}", "{'ceiling': {}}"),
    *("'always'", "'../x'", "'~nosuchuser/x'", "'run/config.toml'", "(1, 2)", "'mifa'", "[0, 0]"),
)


def make(random: Random, place: Place) -> Case:
    """A call with up to two wrong arguments."""
    write_inputs(place.work)
    function = random.choice(public())
    parameters = parameters_of(function)
    if "run" in "".join(RIGHT.get(name, ("",))[0] for name in parameters):
        copy_template(place, random.choice(("finished", "killed")))
    given = {
        name: random.choice(right(function, name))
        for name, required in parameters.items()
        if required or name in ALWAYS or random.random() < 0.3
    }
    faults = random.choices((0, 1, 2), (10, 65, 25))[0]
    for _ in range(faults if parameters else 0):
        name = random.choice(list(parameters))
        # What a function of the user raises is the user's.
        wrong = [value for value in WRONG if name != "allowed" or not value.startswith("nn.")]
        given[name] = random.choice(wrong)
    arguments = ", ".join(f"{name}={value}" for name, value in given.items())
    if any(name in arguments for name in ("Fraction", "Decimal")):
        arguments = arguments.replace("Fraction", "__import__('fractions').Fraction")
        arguments = arguments.replace("Decimal", "__import__('decimal').Decimal")
    code = f"{HEAD}    {function}({arguments}){TAIL}"
    step = Step(code=code, expect="any", writes=("new", "run", "x", ".."))
    return Case([step], about=f"{function}({arguments})")


@cache
def public() -> tuple[str, ...]:
    """Everything public that can be called, as an expression."""
    import fedpbc

    names = [
        name for name in dir(fedpbc) if name not in PASSIVE and callable(getattr(fedpbc, name))
    ]
    theory = [f"theory.{name}" for name in vars(fedpbc.theory)["__all__"]]
    return (*names, *theory, *METHODS)


@cache
def parameters_of(function: str) -> dict[str, bool]:
    """The names of a function's parameters, and whether each is required."""
    namespace: dict[str, Any] = {}
    exec(HEAD.rpartition("try:")[0], namespace)
    found = eval(function, namespace)
    return {
        parameter.name: parameter.default is parameter.empty
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def right(function: str, parameter: str) -> tuple[str, ...]:
    """Values that are right."""
    last = function.rpartition(".")[2] if not function.startswith("from_table(") else function
    return SPECIAL.get((last, parameter)) or RIGHT.get(parameter) or ("1", "0.5", "'x'")
