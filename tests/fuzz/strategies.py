"""Flower strategies: their arguments, what clients reply, and the checkpoint of a job.

Wrong arguments and files are an InputError. Whatever clients reply, the rounds go on, the model
stays finite and the log is clean; and a job that is continued comes to the same bits, or its file
is refused.
"""

from __future__ import annotations

from functools import cache
from random import Random

from tests.fuzz import hostile
from tests.fuzz.calls import WRONG
from tests.fuzz.case import Case, Step
from tests.fuzz.place import Place
from tests.fuzz.templates import copy_template

HEAD = """\
import logging
import numpy as np
import torch
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from torch import nn
import fedpbc
from fedpbc import Quadratic
from fedpbc.links import from_table
from flwr.app import *
from flwr.supercore.task_identity import TaskIdentity
import fedpbc.flower
from fedpbc.flower import strategy_for
from tests.flower.fake_grid import app_of, cut, grid_of, record_of, vector_of

class Mine(Exception): ...
def fail(*args, **more): raise Mine
class Odd:
    def __repr__(self): raise Mine
class Clean(logging.Handler):
    def emit(self, record):
        text = record.getMessage().removeprefix("\\t")
        assert len(text) < 1200, text
        assert all(c.isprintable() or c in "├─>" for c in text), ascii(text)
for name, handlers in (("flwr", [logging.NullHandler()]), ("flwr.fedpbc", [Clean()])):
    logging.getLogger(name).handlers[:] = handlers
    logging.getLogger(name).propagate = False
for name in ("task_id", "run_id", "node_id"):
    setattr(TaskIdentity, f"_{name}", 1)
samples = torch.randn(24, 3), torch.arange(24) % 3
links = {"name": "bernoulli", "p": 0.5}
quadratic = Quadratic([[0.0, 1.0], [3.0, -1.0], [6.0, 2.5]], seed=3)
table = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [1, 0, 0]], dtype=bool)
arrays = record_of(quadratic.init().numpy())
def grid(): return grid_of(app_of(quadratic, cut(table)), 3)
def finite(result):
    assert all(np.isfinite(vector_of(record)).all() for record in result.views.values())
    return result
"""
RIGHT: dict[str, tuple[str, ...]] = {
    "clients": ("3", "5", "None"),
    "view": ("'server'", "'averaged'"),
    "views": ("None", "['server', 'averaged']"),
    "global_lr": ("1.0", "0.5"),
    "learning_rate": ("0.1", "lambda t: 0.1 / t"),
    "local_steps": ("2",),
    "checkpoint": ("'job.safetensors'", "Path('job.safetensors')"),
    "links": ("'links.csv'", "Path('links.csv')"),
    "norm_factor": ("1000.0", "0"),
    "norm_bound": ("0.0", "1e9"),
    "fraction_train": ("1.0", "0.5"),
    "fraction_evaluate": ("0.0",),
    "min_train_nodes": ("2", "0"),
    "min_evaluate_nodes": ("2", "0"),
    "min_available_nodes": ("2", "0"),
    "weighted_by_key": ("'num-examples'",),
    "arrayrecord_key": ("'arrays'",),
    "configrecord_key": ("'config'",),
    "train_metrics_aggr_fn": ("None",),
    "evaluate_metrics_aggr_fn": ("None",),
}
START: dict[str, tuple[str, ...]] = {
    "grid": ("grid()",),
    "initial_arrays": ("arrays",),
    "num_rounds": ("2",),
    "timeout": ("9.0", "None"),
    "train_config": ("None", "ConfigRecord({'x': 1})"),
    "evaluate_config": ("None",),
    "evaluate_fn": ("None", "lambda t, model: None", "lambda t, model: MetricRecord({'x': 1.0})"),
}
KNOWN = {"learning_rate": "0.1", "local_steps": "2"}
ARRAYS = (
    *("ArrayRecord()", "ArrayRecord({'w': Array(np.zeros(0))})", "[np.zeros(3)]", "{'w': 1}"),
    *("record_of(np.full(2, np.nan))", "record_of(np.full(2, np.inf))", "record_of([True, False])"),
    *("ArrayRecord({'w': Array(np.array(['a']))})", "ArrayRecord({'w': Array(np.ones(2) * 1j)})"),
    *("ArrayRecord({'\\x1b[31m': Array(np.ones(2))})", "ArrayRecord({'w': Array(np.ones(9))})"),
    *("ConfigRecord()", "record_of(np.full(2, 1e308))", "record_of(np.ones(2, np.float16))"),
    "ArrayRecord({**arrays, 'n': Array(np.array(7)), 'is': Array(np.array([True]))})",
)
CHANGES = (
    "del content['fedpbc']",
    "del content['arrays']",
    "content.pop('metrics', None)",
    "content['more'] = ArrayRecord({'w': Array(np.zeros(2))})",
    "content['more'] = MetricRecord({'\\x1b[31m': float('nan'), 'num-examples': -3})",
    "content['metrics'] = MetricRecord({'num-examples': 10 ** 9, 'x\\u202e': [1.0, 2.0]})",
    "content['metrics'] = MetricRecord({'num-examples': float('inf'), 'x': 1e308})",
    "content['metrics'] = MetricRecord({'num-examples': 1, 'round': [], 'start-loss': 2})",
    "content['arrays'] = record_of(np.full(2, np.nan))",
    "content['arrays'] = record_of(np.full(2, 1.7e308))",
    "content['arrays'] = record_of(np.full(2, -1e300))",
    "content['arrays'] = record_of(np.ones(5))",
    "content['arrays'] = record_of(np.ones(2, np.float32))",
    "content['arrays'] = record_of(np.array(['a', 'b']))",
    "content['arrays'] = ArrayRecord()",
    "content['arrays'] = ArrayRecord({'\\x1b[2J' * 300: Array(np.zeros(2))})",
    "content['fedpbc.upload'] = ArrayRecord({'model': Array(np.zeros(2))})",
    "content['fedpbc.upload'] = ArrayRecord({'x\\x07': Array(np.zeros(0))})",
    "content['fedpbc.upload'] = record_of(np.full(2, np.inf))",
    "content.pop('fedpbc.upload', None)",
    "content.clear()",
)
FIELDS = ("version", "job", "round", "token", "problem", "partition-id", "num-partitions", "nope")
VALUES = (
    *("0", "1", "-1", "2", "3", "2 ** 31", "-2 ** 63", "1.5", "float('nan')", "True", "b'x'"),
    *(
        "''",
        "'x'",
        "'2'",
        "'\\x1b[31m' * 500",
        "'x\\u202e\\n\\nTraceback'",
        "[1, 2]",
        "['a']",
        "[]",
    ),
)
REPLIES = (
    "reply = None",
    "reply = Message(Error(0, 'x\\x1b[31m' * 900), reply_to=request)",
    "reply = Message(Error(9, ''), reply_to=request)",
    "reply.metadata._src_node_id = 5",
    "reply.metadata.__dict__['_src_node_id'] = 101",
)


def make(random: Random, place: Place) -> Case:
    """A strategy with up to two faults, somewhere between its arguments and its clients."""
    choices = {arguments: 45, start: 15, replies: 25, checkpoint: 15}
    return random.choices(list(choices), list(choices.values()))[0](random, place)


def arguments(random: Random, place: Place) -> Case:
    """A strategy with wrong arguments, and two rounds if it can be made."""
    name = random.choice(names())
    own = options(name)
    known = [*RIGHT, *own, "nope"]
    given = {key: value for key, value in needed(name).items() if random.random() < 0.9}
    for key in RIGHT:
        if random.random() < 0.15:
            given[key] = random.choice(RIGHT[key])
    for _ in range(random.choice((0, 1, 1, 2))):
        key = random.choice(known)
        value = random.choice(WRONG)
        if key in ("checkpoint", "links") and random.random() < 0.5:
            value = ascii(hostile.path(random))
        given[key] = value
    positional = random.choice(WRONG) + ", " if random.random() < 0.05 else ""
    words = positional + spelled(given)
    made = f"strategy_for({name!r}, {words})"
    if random.random() < 0.5 and (kind := class_name(name)):
        made = f"fedpbc.flower.{kind}({words})"
    code = f"finite({made}.start(grid(), arrays, 2, 9.0))"
    return case(code, writes=("job.safetensors", "links.csv", *written(given)))


def start(random: Random, place: Place) -> Case:
    """A job that is started with wrong arguments."""
    given = {key: random.choice(values) for key, values in START.items()}
    for _ in range(random.choice((1, 1, 2))):
        key = random.choice([key for key in START if key != "grid"])
        # What a function of the user raises is the user's.
        own = key == "evaluate_fn"
        callables = ("nn.", "int", "Odd") if own else ()
        given[key] = random.choice([v for v in WRONG if not v.startswith(callables)])
        if key == "initial_arrays" and random.random() < 0.7:
            given[key] = random.choice(ARRAYS)
        if key == "num_rounds" and random.random() < 0.3:
            given[key] = "0"
    name = random.choice(usable())
    made = f"strategy_for({name!r}, {spelled(needed(name))})"
    return case(f"{made}.start({spelled(given)})")


def replies(random: Random, place: Place) -> Case:
    """A job whose clients may reply anything."""
    lines = [f"    if count == {count}: {change(random)}" for count in range(4)]
    lines = random.sample(lines, random.choice((1, 2, 4)))
    chance = random.choice((0.2, 0.5, 1.0))
    name = random.choice(usable())
    code = f"""\
rng = np.random.default_rng({random.randrange(1000)})
def after(node, reply):
    request = g.sent[-1]
    if reply.has_error() or rng.random() > {chance}: return reply
    content, count = reply.content, rng.integers(4)
{chr(10).join(lines)}
    return reply
g = grid()
g.after = after
try:
    finite(strategy_for({name!r}, {spelled(needed(name))}).start(g, arrays, 4, 9.0))
except fedpbc.InputError as error:
    # Nobody's replies can ever count.
    assert 'no client can take part' in str(error), error
"""
    return case(code, refusal=False)


def change(random: Random) -> str:
    """A statement that changes a reply."""
    pick = random.random()
    if pick < 0.35:
        return guarded(random.choice(CHANGES))
    if pick < 0.6:
        field, value = random.choice(FIELDS), random.choice(VALUES)
        return guarded(
            f"content['fedpbc'] = ConfigRecord({{**content['fedpbc'], {field!r}: {value}}})"
        )
    if pick < 0.85:
        data = random.choice(
            (
                "a.data[:-1]",
                "b''",
                "a.data + b'x'",
                f"a.data[:{random.randrange(200)}] + bytes([{random.randrange(256)}])"
                f" + a.data[{random.randrange(200)}:]",
                "Array(np.zeros(10)).data",
                "a.data.replace(b'<f8', b'|O8')",
                "a.data.replace(b'(1,)', b'(1' + b'0' * 12 + b',)')",
            )
        )
        dtype = random.choice(("a.dtype", "a.dtype", "a.dtype", "'O'", "'float32'", "'x\\x1b'"))
        shape = random.choice(("a.shape", "a.shape", "a.shape", "(2 ** 62,)", "(-1,)", "()"))
        stype = random.choice(("a.stype", "a.stype", "'pickle'", "'\\x1b'"))
        replaced = f"Array({dtype}, {shape}, {stype}, {data})"
        return guarded(f"a = content['arrays']['first']; content['arrays']['first'] = {replaced}")
    return random.choice(REPLIES)


def guarded(statement: str) -> str:
    """A statement on the records of a model; greetings have none."""
    return f"exec({statement!r}, globals(), locals()) if 'arrays' in content else None"


def checkpoint(random: Random, place: Place) -> Case:
    """A job that is continued from a file that was damaged or is another one."""
    name = random.choice(usable())
    made = f"strategy_for({name!r}, checkpoint='job.safetensors', {spelled(needed(name))})"
    begun = f"g = grid()\n{made}.start(g, arrays, 2, 9.0)"
    pick = random.random()
    if pick < 0.2:
        # A state of something else.
        copy_template(place, "killed")
        source = "next(Path('run').rglob('*.safetensors'))"
        begun += f"\nPath('job.safetensors').write_bytes({source}.read_bytes())"
    elif pick < 0.35:
        target = random.choice(("mine.txt", "mine", "nope", "/dev/zero", "job.safetensors"))
        begun += "\nPath('job.safetensors').unlink()"
        begun += f"\nPath('job.safetensors').symlink_to({target!r})"
    elif pick < 0.9:
        begun += f"""
from random import Random
from tests.fuzz import hostile
file = Path('job.safetensors')
file.write_bytes(hostile.mutate(Random({random.randrange(10**6)}), file.read_bytes()))"""
    code = f"""\
{begun}
expected = strategy_for({name!r}, {spelled(needed(name))}).start(grid(), arrays, 4, 9.0)
try:
    result = finite({made}.start(g, arrays, 4, 9.0))
except fedpbc.FedpbcError as error:
    assert str(error).isprintable(), ascii(error)
    raise Mine from None
assert np.array_equal(vector_of(result.arrays), vector_of(expected.arrays)), 'silent loss'"""
    return case(code, writes=("job.safetensors",))


def case(code: str, *, writes: tuple[str, ...] = (), refusal: bool = True) -> Case:
    """A case of Python code; what the user's own function raises is the user's."""
    indented = "\n".join(f"    {line}" for line in code.splitlines())
    whole = f"{HEAD}try:\n{indented}\nexcept Mine:\n    pass\n"
    expect = "any" if refusal else "success"
    return Case([Step(code=whole, expect=expect, writes=writes)], about=code)


def spelled(given: dict[str, str]) -> str:
    """Keyword arguments as they are written."""
    return ", ".join(f"{key}={value}" for key, value in given.items())


def written(given: dict[str, str]) -> tuple[str, ...]:
    """Files that arguments name."""
    values = (given.get(key, "") for key in ("checkpoint", "links"))
    named = (value.removeprefix("Path(").removesuffix(")") for value in values)
    return tuple(str(eval(value)) for value in named if value.startswith(("'", '"')))


@cache
def names() -> tuple[str, ...]:
    """Every algorithm by name."""
    from fedpbc.algorithms import ALGORITHMS

    return tuple(sorted(ALGORITHMS))


def usable() -> tuple[str, ...]:
    """Those that an app can run."""
    return tuple(name for name in names() if name not in ("fedavg_known", "focus"))


def needed(name: str) -> dict[str, str]:
    """What an algorithm must be told of the app's training, and nothing else."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.flower.requirements import needed_settings

    known = needed_settings(ALGORITHMS[name], {}) if name in usable() else []
    return {**{key: KNOWN[key] for key in known}, "fraction_evaluate": "0.0"}


@cache
def options(name: str) -> tuple[str, ...]:
    """The options of an algorithm."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.options import options_of

    return tuple(options_of(ALGORITHMS[name].__init__))


@cache
def class_name(name: str) -> str:
    """The strategy's class, if there is one."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.flower import strategies

    kind = ALGORITHMS[name].__name__
    return kind if kind in strategies.__all__ else ""
