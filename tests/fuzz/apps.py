"""App files as tasks: good ones, and ones that are wrong in what they define, return or raise."""

from __future__ import annotations

from random import Random

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.plugins import ANYWHERE
from tests.fuzz.templates import write_inputs

APP = """\
import numpy as np
import torch
from torch import nn
{before}

def model():
    {in_model}
    return {model}


def data(client):
    {in_data}
    inputs = torch.randn(10, 3, generator=torch.Generator().manual_seed(client))
    return {samples}


{more}
"""
SOUND = "inputs, (inputs.sum(dim=1) > 0).long()"
CHOICES: dict[str, tuple[str, ...]] = {
    "before": (*ANYWHERE, "model = 3", "from nowhere import x"),
    "in_model": ANYWHERE,
    "in_data": (*ANYWHERE, "if client == 2: return None", "if client > 5: raise IndexError"),
    "model": (
        *("None", "3", "nn.Linear(4, 2)", "nn.Linear(3, 1)", "nn.Identity()", "nn.Sequential()"),
        *("nn.Linear(3, 2).double()", "nn.Linear(3, 2).requires_grad_(False)", "nn.Linear"),
        *("nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))", "nn.Linear(3, 2, device='meta')"),
        *("nn.Sequential(nn.Linear(3, 2), nn.Dropout())", "nn.LSTM(3, 2)", "nn.LazyLinear(2)"),
    ),
    "samples": (
        *("inputs", "None", "(inputs,)", "inputs, None", "inputs[:0], torch.zeros(0).long()"),
        *("inputs, torch.zeros(9).long()", "inputs, torch.full((10,), 7)", "inputs, inputs"),
        *("inputs * float('nan'), torch.zeros(10).long()", "inputs.numpy(), np.zeros(10, int)"),
        *("inputs, torch.full((10,), -1)", "inputs.to_sparse(), torch.zeros(10).long()"),
        *("inputs[:, :client + 1], torch.zeros(10).long()", "inputs[0], torch.zeros(3).long()"),
        *("inputs[:3], torch.zeros(3).long()", "[[1, 2, 3]], [0]", "['a'], ['b']"),
        *(
            "inputs.int(), torch.zeros(10).long()",
            "inputs, torch.zeros(10)",
            "inputs, inputs[:, 0]",
        ),
    ),
    "more": (
        "test = 3",
        "def test(): return None",
        "def test(): return data(0)[0][:0], data(0)[1][:0]",
        "def test(): return torch.zeros(2, 4), torch.zeros(2).long()",
        "def test(): return data(7)",
        "def test(): return data(0)[0], torch.full((10,), 5)",
        "def loss(outputs, labels): return outputs",
        "def loss(outputs, labels): return 'x\\x1b'",
        "def loss(outputs, labels): return outputs.sum() * float('nan')",
        "def loss(outputs): return outputs.sum()",
        "def loss(outputs, labels): raise ValueError('x' * 5000)",
        "loss = nn.CrossEntropyLoss()",
        "loss = nn.MSELoss()",
        "loss = None",
        "def data(): return None",
    ),
}
COMMANDS = (
    # How often, the command and its options.
    (50, ("run",)),
    (15, ("compare", "--algorithms", "fedavg,mifa", "--seeds", "0", "--jobs", "1")),
    (20, ("tune", "--candidates", "2", "--jobs", "1")),
    (3, ("advise", "--minutes", "0.001", "--jobs", "1")),
    (12, ("links",)),
)
CONFIG = """\
rounds = 2
clients = 3
evaluate_every = 1
[links]
name = "bernoulli"
p = 0.6
[train]
local_steps = 1
batch_size = 4
"""


def make(random: Random, place: Place) -> Case:
    """A command with an app."""
    write_inputs(place.work)
    place.write("config.toml", CONFIG)
    parts = dict.fromkeys(CHOICES, "") | {"in_model": "pass", "in_data": "pass"}
    parts |= {"model": "nn.Linear(3, 2)", "samples": SOUND}
    faults = random.choice((0, 1, 1, 1, 2))
    for slot in random.sample(sorted(CHOICES), faults):
        parts[slot] = random.choice(CHOICES[slot])
    source = APP.format(**parts)
    if random.random() < 0.1:
        source = hostile.mutate(random, source.encode()).decode("utf-8", "replace")
        faults += 1
    place.write("own.py", source)
    shares = [share for share, _ in COMMANDS]
    _, words = random.choices(COMMANDS, shares)[0]
    if words[0] == "links":
        words = ("links", "config.toml", "--set", "task.app=own.py")
    else:
        words = (words[0], "config.toml", "--app", "own.py", *words[1:], "--out", "out")
    if random.random() < 0.2:
        value = random.choice(("0.2", "0.99", "-1", "nan", "1", "1e-9", "x", "true"))
        words += ("--set", f"task.validation={value}")
        faults += 1
    expect = "success" if not faults and words[0] != "advise" else "any"
    return Case([Step(words, expect=expect, writes=("out",))], about=source)
