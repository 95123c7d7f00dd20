"""Plugins: good ones, and ones that are wrong in what they declare, yield, keep or raise."""

from __future__ import annotations

from random import Random

from tests.fuzz import hostile
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import write_inputs

HEAD = """\
import numpy as np
import torch
from typing import Annotated, Literal
from annotated_types import Ge
from fedpbc import Algorithm, Round, Update, link_scheme, mean, register_algorithm

"""
ALGORITHM = """\
@register_algorithm
class Own(Algorithm):
    '''{summary}'''

    name = {name}
    {attributes}

    def __init__(self, init{options}):
        super().__init__(init)
        {state}

    def aggregate(self, round, updates):
        {before}
        if updates:
            self.x = {model}
        {after}
"""
SCHEME = """\
@link_scheme{registered}
def own_links(setting{options}):
    '''{summary}'''
    {before}
    for t in range({rounds}):
        yield {row}
"""
ANYWHERE = (
    "raise ValueError('a\\x1b[31mb')",
    "raise KeyError('x')",
    "raise Exception",
    "1 / 0",
    "raise SystemExit(0)",
    "raise SystemExit('no')",
    "raise RuntimeError('x' * 100000)",
    "(lambda f: f(f))(lambda f: f(f))",
    "raise MemoryError",
    "raise OSError(28, 'No space left on device', 'x\\x1b[31m')",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "import nosuchmodule",
    "assert False",
    "raise StopIteration",
)
NAMES = (
    '"own"',
    '"fedavg"',
    '""',
    "3",
    "None",
    '"../own"',
    '"a/b"',
    '"x\\x1b[31m"',
    '"x\\u202e"',
    '"o w n"',
    '"x[/b]"',
    '"a" * 500',
    '".."',
    '"own\\n"',
)
OPTIONS = (
    "",
    ", *, factor: float = 1.0",
    ", *, factor: Annotated[int, Ge(1)] = 2",
    ", *, factor=1.0",
    ", *, factor: float",
    ", factor",
    ", *args, **kwargs",
    ", *, factor: 'nope' = 1",
    ", *, factor: object = object()",
    ", *, factor: Literal['a'] = 'b'",
    ", *, name: str = 'x'",
    ", *, factor: torch.Tensor = None",
)
STATES = (
    "pass",
    "self.memory = torch.zeros_like(self.x)",
    "self.memory = {0: [1.5, 'x'], 1: None}",
    "self.memory = lambda: 1",
    "self.memory = {1, 2}",
    "self.memory = object()",
    "self.memory = 10 ** 400",
    "self.memory = float('nan')",
    "self.memory = []; self.memory.append(self.memory)",
    "self.memory = torch.zeros(3).to_sparse()",
    "self.memory = np.array(['a'], dtype=object)",
    "self.memory = b'x'",
    "self.memory = 'x' * 10 ** 6",
    "self.memory = {(1, 2): 3}",
    "self.memory = torch.zeros(2, dtype=torch.complex64)",
)
MODELS = (
    "mean([u.end for u in updates])",
    "updates[0].end",
    "None",
    "self.x * float('nan')",
    "self.x.new_zeros(7)",
    "self.x.float()",
    "self.x.numpy()",
    "3.0",
    "self.x.requires_grad_()",
    "torch.zeros(0)",
    "self.x.reshape(1, -1)",
)
ATTRIBUTES = (
    "pass",
    "views = ('server',)",
    "views = 3",
    "views = ('x\\x1b[31m',)",
    "everyone_trains = 'yes'",
    "needs_probabilities = True",
    "paper = 3",
    "everyone_trains = True",
)
ROWS = (
    "np.full(setting.clients, t % 2 == 0)",
    "(setting.uniform(t) < 0.5, np.full(setting.clients, 0.5))",
    "np.zeros(setting.clients)",
    "np.ones(setting.clients + 1, dtype=bool)",
    "[True] * setting.clients",
    "None",
    "(np.ones(setting.clients, dtype=bool), np.full(setting.clients, 2.0))",
    "(np.ones(setting.clients, dtype=bool), None)",
    "(np.ones(setting.clients, dtype=bool),)",
    "np.ones(setting.clients, dtype=bool) if t else None",
    "setting.p < 0.5",
    "setting.uniform(-1) < 0.5",
)
ROUNDS = ("setting.rounds", "setting.rounds", "0", "setting.rounds - 1", "10 ** 12")


def make(random: Random, place: Place) -> Case:
    """A run, a list or a comparison with a plugin."""
    write_inputs(place.work)
    faults = random.choice((0, 1, 1, 1, 2))
    source, algorithm = written(random, faults)
    if random.random() < 0.15:
        source = hostile.mutate(random, source.encode()).decode("utf-8", "replace")
        faults += 1
    if random.random() < 0.1:
        source = random.choice(ANYWHERE) + "\n" + source
        faults += 1
    place.write("own.py", source)
    words = ["run", "quadratic.toml", "--plugin", "own.py", "--out", "out"]
    words += ["--algorithm", "own"] if algorithm else ["--links", "own_links"]
    if not algorithm:
        # The scheme does not read p, and an option without effect is refused.
        place.write("quadratic.toml", 'rounds = 3\n[task]\ntargets = "targets.npy"\n')
    pick = random.random()
    if pick < 0.1:
        words = ["list", "--plugin", "own.py"]
    elif pick < 0.2 and algorithm:
        words = [
            "compare",
            *words[1:6],
            "--algorithms",
            "own,fedavg",
            "--seeds",
            "0",
            "--jobs",
            "1",
        ]
    elif random.random() < 0.2:
        words += ["--set", f"algorithm.factor={hostile.toml_value(random)}".replace("\0", "")]
        faults += 1
    writes = ("out",)
    expect = "success" if not faults else "any"
    return Case([Step(tuple(words), expect=expect, writes=writes)], about=source)


def written(random: Random, faults: int) -> tuple[str, bool]:
    """The source of a plugin, and whether it is an algorithm."""
    algorithm = random.random() < 0.6
    parts = {
        "summary": "A rule.",
        "name": NAMES[0],
        "attributes": "pass",
        "options": "",
        "state": "pass",
        "before": "pass",
        "after": "pass",
        "model": MODELS[0],
        "registered": "",
        "rounds": "setting.rounds",
        "row": ROWS[0],
    }
    choices = {
        "summary": ("", "x\x1b[31m", "[/b]", "a" * 5000),
        "name": NAMES,
        "attributes": ATTRIBUTES,
        "options": OPTIONS,
        "state": STATES,
        "before": ANYWHERE,
        "after": ANYWHERE,
        "model": MODELS,
        "registered": ("(independent=True)", "()", "(independent='x')", "(3)"),
        "rounds": ROUNDS,
        "row": ROWS,
    }
    template = ALGORITHM if algorithm else SCHEME
    slots = [slot for slot in choices if f"{{{slot}}}" in template]
    for slot in random.sample(slots, faults):
        parts[slot] = random.choice(choices[slot])
    return HEAD + template.format(**parts), algorithm
