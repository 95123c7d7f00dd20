"""Which engine a run gets, and what is said about it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from fedpbc.engines import ENGINES, PoolEngine, SerialEngine, StackedEngine, choose, choose_engine
from fedpbc.errors import InputError
from fedpbc.tasks import LocalTraining
from tests import small_runs as small

TANH = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


@pytest.fixture
def cores(monkeypatch):
    """Lets a test say how many cores there are."""

    def say(count):
        monkeypatch.setattr("fedpbc.engines.choose.usable_cores", lambda: count)
        monkeypatch.setattr("fedpbc.engines.pool.usable_cores", lambda: count)

    return say


def test_engines_by_name():
    for name in ("serial", "stacked", "pool"):
        made, why = choose_engine(name, small.quadratic())
        assert made.name == name
        assert why == f"{name}: requested"
    assert set(ENGINES) >= {"serial", "stacked", "pool", "ray"}
    with pytest.raises(InputError, match=r"engine is 'stackd', .*did you mean 'stacked'\?"):
        choose_engine("stackd", small.quadratic())


def test_auto_stacks_small_dense_models_whatever_there_is(cores):
    for count in (1, 8):
        cores(count)
        made, why = choose_engine("auto", small.network())
        assert type(made) is StackedEngine
        assert why.startswith("stacked: a small dense model, ")


def test_auto_takes_all_cores_for_long_work(cores):
    cores(6)
    made, why = choose_engine("auto", small.network(module=TANH), client_rounds=10**9)
    assert type(made) is PoolEngine
    assert made.workers == 6
    assert why.startswith("pool: 6 processes, since the model is not a plain sequence")


def test_auto_does_not_start_processes_for_short_work(cores):
    cores(6)
    made, why = choose_engine("auto", small.network(module=TANH), client_rounds=3)
    assert type(made) is SerialEngine
    assert why.startswith("serial: only about ")


def test_auto_on_one_core(cores):
    cores(1)
    made, why = choose_engine("auto", small.network(module=TANH))
    assert (type(made), why) == (SerialEngine, "serial: one core is available")
    cores(8)
    assert type(choose_engine("auto", small.network(module=TANH), workers=1)[0]) is SerialEngine


def test_auto_does_not_stack_large_models(cores):
    cores(2)
    module = nn.Sequential(nn.Linear(6, 50_000), nn.ReLU(), nn.Linear(50_000, 4))
    why = choose_engine("auto", small.network(module=module))[1]
    assert why == "pool: 2 processes, since 550,004 parameters are too many to stack"


def test_auto_with_a_task_that_no_other_process_can_have(cores):
    cores(2)

    class Locked(nn.Tanh):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    task = small.network(module=nn.Sequential(nn.Linear(6, 5), Locked(), nn.Linear(5, 4)))
    made, why = choose_engine("auto", task)
    assert type(made) is SerialEngine
    assert "cannot be sent to other processes" in why
    with pytest.raises(InputError, match="engine is 'pool', but should be 'serial', since the"):
        PoolEngine(task)


def test_a_task_without_stacked_steps(cores):
    cores(1)

    class Plain:
        training = LocalTraining()

    assert choose_engine("auto", Plain())[0].name == "serial"
    with pytest.raises(InputError, match="no stacked local steps"):
        StackedEngine(Plain())
    assert choose.stack_advice(Plain()).why == "the task has no stacked local steps"


@pytest.mark.parametrize("name", ["serial", "stacked"])
def test_options_that_an_engine_does_not_have(name):
    with pytest.raises(InputError, match=f"workers is 3, but should be left out: .*'{name}'"):
        choose_engine(name, small.quadratic(), workers=3)
    with pytest.raises(InputError, match="ray_address is 'there:1', but should be left out"):
        choose_engine("pool", small.quadratic(), ray_address="there:1")


def test_a_negative_number_of_workers():
    with pytest.raises(InputError, match="workers is -1, but should be at least 1, or 0"):
        choose_engine("pool", small.quadratic(), workers=-1)


def test_auto_on_a_gpu_does_not_copy_the_data_to_every_process(cores):
    cores(4)
    task = small.network(module=TANH)
    task.device = torch.device("cuda", 0)
    assert choose_engine("auto", task)[1] == "serial: the task runs on the device cuda:0"
