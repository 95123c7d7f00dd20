"""What travels to Ray's workers, without Ray: the same task, the same vectors, the same bits."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc.engines import Segment, SerialEngine
from fedpbc.engines.choose import ENGINES
from fedpbc.engines.engine import one_thread
from fedpbc.engines.ray_store import (
    SHARED_BYTES,
    Failure,
    fetch_task,
    fetch_vector,
    run_segment,
    store_task,
    store_vector,
)
from fedpbc.engines.segment import Trained
from fedpbc.engines.serial import train
from fedpbc.engines.shared_memory import pickled_by_value
from fedpbc.errors import DivergedError, InputError
from fedpbc.tasks import LocalTraining
from tests import small_runs as small
from tests.simulation import test_normalisation_layers as normalisation

LARGE = SHARED_BYTES // 4 + 3


def read_only(stored):
    """As Ray hands it over."""
    stored[0].flags.writeable = False
    return stored


def travelled(value):
    return fetch_task(read_only(store_task(value)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_vectors_keep_their_kind_of_number_and_belong_to_whoever_fetches_them(dtype):
    vector = torch.linspace(-3, 3, 7).to(dtype)
    stored = read_only(store_vector(vector.clone()))
    first, second = fetch_vector(stored), fetch_vector(stored)
    assert first.dtype == dtype
    assert torch.equal(first, vector)
    first.add_(1)
    assert torch.equal(second, vector)


def test_a_vector_that_is_no_plain_row_of_numbers():
    wide = torch.arange(10.0, requires_grad=True)
    assert torch.equal(fetch_vector(store_vector(wide[::3])), wide.detach()[::3])


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("training", [{}, {"optimizer": "adam", "proximal": 0.1}])
def test_a_task_trains_to_the_same_bits(used, training):
    task = small.network(**training)
    segment = Segment(3, task.init() * 1.5, first_round=2, rounds=3, first_batch=6)
    if used:
        # It has prepared its steps by now, on the very memory of its module.
        train(task, segment)
    vector, numbers = store_vector(segment.start), segment.numbers
    stored, keys = read_only(store_task(task)), (["upload model"], ["start"])
    [found] = run_segment(f"{used} {training}", stored, numbers, None, *keys, vector)
    assert torch.equal(fetch_vector(found), train(task, segment).end)


def test_large_tensors_stay_where_they_are_and_others_can_be_written_to():
    module = nn.Linear(1, LARGE)
    value = {
        "data": torch.rand(LARGE),
        "few": torch.rand(5),
        "module": module,
        "weight": module.weight.detach(),
        "array": np.random.default_rng(0).random(LARGE),
    }
    stored = read_only(store_task(value))
    found, shared = fetch_task(stored)
    first, last = stored[0].ctypes.data, stored[0].ctypes.data + stored[0].nbytes
    assert first <= found["data"].data_ptr() < last
    assert [tensor is found["data"] for tensor in shared] == [True]
    assert not found["array"].flags.writeable
    for name in ("data", "few", "weight"):
        assert torch.equal(found[name], value[name])
    assert np.array_equal(found["array"], value["array"])
    for written in (found["few"], found["module"].weight.data):
        assert not first <= written.data_ptr() < last
        assert written.data_ptr() % 64 == 0
        written.zero_()
    # What shares memory here shares it there.
    assert not found["weight"].any()
    assert module.weight.any()


def test_views_empty_tensors_and_other_memory_formats():
    pictures = torch.rand(64, 3, 40, 40).to(memory_format=torch.channels_last)
    value = [pictures, pictures[3:5, :, ::2], torch.empty(0, 3), torch.tensor(4)]
    found, shared = travelled(value)
    for here, there in zip(value, found, strict=True):
        assert torch.equal(here, there)
        assert here.dtype == there.dtype
        assert here.stride() == there.stride()
    assert found[1].data_ptr() - found[0].data_ptr() == value[1].data_ptr() - value[0].data_ptr()
    assert len(shared) == 2


def test_buffers_of_modules_can_be_written_to():
    module = nn.Module()
    module.register_buffer("mask", torch.ones(LARGE))
    found, shared = travelled(module)
    assert shared == []
    found.mask.zero_()


class Told:
    """A task that does what it is told."""

    training = LocalTraining(local_steps=1)

    def __init__(self, steps) -> None:
        self.steps, self.large = steps, torch.zeros(LARGE)

    def local_steps(self, client, start, round, first_batch, correction):
        return self.steps(self, start)


def run(steps, key, scale=1.0):
    stored = read_only(store_task(Told(steps)))
    numbers, keys = (4, 2, 1, 0, scale, 0), (["upload model"], ["start"])
    [found] = run_segment(key, stored, numbers, None, *keys, store_vector(torch.ones(2)))
    return found


def test_a_task_that_writes_to_what_others_see_is_found_out():
    def steps(task, start):
        task.large[7:9] += 1
        return start

    assert run(steps, "writes") == Failure(
        "RuntimeError: the task changes a large tensor in place that processes share"
    )


def test_what_a_module_raises_becomes_one_line():
    def steps(task, start):
        raise ValueError("this\nand that")

    assert run(steps, "raises") == Failure("ValueError: this and that")


def test_a_model_that_is_not_finite():
    failure = run(lambda task, start: start / 0, "diverges")
    assert isinstance(failure.error, DivergedError)
    assert (failure.error.client, failure.error.round) == (4, 2)


def test_a_start_may_be_changed_without_harm():
    assert torch.equal(
        fetch_vector(run(lambda task, start: start.add_(1), "adds")), torch.ones(2) * 2
    )


def test_tasks_are_told_apart_by_their_key():
    ends = {}
    for _ in range(2):
        for key, factor in (("a", 2.0), ("b", 3.0), ("c", 5.0)):
            ends[key] = fetch_vector(run(lambda task, start, by=factor: start * by, key))[0].item()
    assert ends == {"a": 2.0, "b": 3.0, "c": 5.0}


def test_a_task_that_cannot_travel():
    lock = threading.Lock()
    with pytest.raises(InputError, match=r"engine is 'ray', but should be 'serial', since .*lock"):
        store_task(Told(lambda task, start: lock))


class StoreEngine(SerialEngine):
    """Runs every segment as a worker of Ray does, in this process."""

    def __init__(self, task):
        super().__init__(task)
        self.stored = read_only(store_task(task))

    def result(self, client):
        segment = self._waiting.pop(client)
        rule = None if segment.rule is None else pickled_by_value(segment.rule)
        names, vectors = list(segment.inputs), map(store_vector, segment.inputs.values())
        given = segment.numbers, rule, segment.outputs, names
        with one_thread():
            found = run_segment(f"store {id(self)}", self.stored, *given, *vectors)
        fetched = map(fetch_vector, found)
        return Trained.from_vectors(segment, dict(zip(segment.outputs, fetched, strict=True)))


@pytest.mark.parametrize(
    ("mode", "algorithm"), [("average", "fedpbc"), ("average", "focus"), ("client", "fedpbc")]
)
def test_running_statistics_and_kept_layers_travel(mode, algorithm, monkeypatch):
    here = normalisation.run(mode, algorithm)
    monkeypatch.setitem(ENGINES, "serial", StoreEngine)
    there = normalisation.run(mode, algorithm)
    assert all(torch.equal(there.models[view], here.models[view]) for view in here.models)
