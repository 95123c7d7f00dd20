"""The compiled kernel gives what PyTorch gives, and nothing else changes without it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedpbc.engines import Segment, SerialEngine, StackedEngine
from fedpbc.tasks import dense_kernel, stack_trainer
from fedpbc.tasks.dense_kernel import dense_steps, has_dense_steps
from tests import small_runs as small

widths = st.lists(st.integers(1, 70), min_size=2, max_size=4)
batches = st.integers(1, 20)
compiled = pytest.mark.skipif(not has_dense_steps(), reason="built without a C compiler")


@compiled
@given(sizes=widths, batch=batches, steps=st.integers(1, 3))
def test_dense_steps_are_those_of_autograd(sizes, batch, steps):
    torch.manual_seed(1)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    module = nn.Sequential(*layers[:-1])
    samples, labels = torch.randn(20, sizes[0]), torch.randint(0, sizes[-1], (20,))
    index = torch.randint(0, 20, (2, steps, batch))
    first = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    models = torch.stack([first, first])
    dense_steps(models, sizes, samples, labels, index, torch.tensor([0.1, 0.2]))
    for row, rate in enumerate((0.1, 0.2)):
        nn.utils.vector_to_parameters(first.clone(), module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        for taken in index[row]:
            optimizer.zero_grad()
            functional.cross_entropy(module(samples[taken]), labels[taken]).backward()
            optimizer.step()
        expected = nn.utils.parameters_to_vector(module.parameters())
        torch.testing.assert_close(models[row], expected.detach(), rtol=1e-4, atol=1e-5)


@compiled
@given(sizes=widths, batch=batches, clients=st.integers(1, 5))
def test_a_processor_with_narrow_registers_gives_the_same_bits(sizes, batch, clients):
    torch.manual_seed(2)
    parameters = sum((a + 1) * b for a, b in itertools.pairwise(sizes))
    first, rates = torch.randn(clients, parameters) / 4, torch.rand(clients)
    samples, labels = torch.randn(20, sizes[0]), torch.randint(0, sizes[-1], (20,))
    index = torch.randint(0, 20, (clients, 2, batch))
    wide, narrow = first.clone(), first.clone()
    dense_steps(wide, sizes, samples, labels, index, rates)
    with pytest.MonkeyPatch.context() as patch:
        kernel = dense_kernel.load_kernel("fedpbc_narrow_dense_steps")
        patch.setattr(dense_kernel, "load_kernel", lambda: kernel)
        dense_steps(narrow, sizes, samples, labels, index, rates)
    assert torch.equal(wide, narrow)
    # With one class there is nothing to learn.
    assert sizes[-1] == 1 or not torch.equal(wide, first)


@compiled
@given(clients=st.integers(1, 7), threads=st.integers(2, 9))
def test_the_bits_do_not_depend_on_the_number_of_threads(clients, threads):
    torch.manual_seed(3)
    first, rates = torch.randn(clients, 5 * 4 + 4), torch.rand(clients)
    samples, labels = torch.randn(20, 5), torch.randint(0, 4, (20,))
    index = torch.randint(0, 20, (clients, 2, 8))
    results = []
    for cores in (1, threads):
        models = first.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dense_kernel, "usable_cores", lambda cores=cores: cores)
            assert dense_steps(models, [5, 4], samples, labels, index, rates).all()
        results.append(models)
    assert torch.equal(*results)


@compiled
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_model_that_diverges_is_seen_to(value):
    models = torch.zeros(3, 2 * 3 + 3)
    models[1, 4] = value
    index = torch.zeros(3, 1, 2, dtype=torch.int64)
    labels, rates = torch.tensor([1]), torch.full((3,), 0.1)
    finite = dense_steps(models, [2, 3], torch.ones(1, 2), labels, index, rates)
    assert finite.tolist() == [True, False, True]
    assert finite.tolist() == models.isfinite().all(1).tolist()


@compiled
@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_an_interruption_waits_for_all_threads(monkeypatch):
    # They write to memory that ends with the caller.
    monkeypatch.setattr(dense_kernel, "usable_cores", lambda: 2)
    torch.manual_seed(4)
    sizes, clients = [400, 64, 10], 40
    first = torch.randn(clients, 401 * 64 + 65 * 10) / 20
    samples, labels = torch.rand(20, 400), torch.randint(0, 10, (20,))
    index, rates = torch.randint(0, 20, (clients, 40, 16)), torch.full((clients,), 0.01)
    expected, models = first.clone(), first.clone()
    dense_steps(expected, sizes, samples, labels, index, rates)

    def interrupt():
        # Not before the threads are at work, however busy the machine.
        while torch.equal(models, first):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt, daemon=True)

    def train():
        sender.start()
        dense_steps(models, sizes, samples, labels, index, rates)
        time.sleep(60)  # On a quick machine, the signal comes now.

    with pytest.raises(KeyboardInterrupt):
        train()
    sender.join()
    assert torch.equal(models, expected)


def test_without_the_kernel_the_stack_agrees(monkeypatch):
    monkeypatch.setattr(stack_trainer, "has_dense_steps", lambda: False)
    task = small.network()
    for client in range(3):
        work = Segment(client, task.init(), client, 2, 3 * client)
        ends = []
        for engine in (SerialEngine(task), StackedEngine(task)):
            engine.submit(work)
            ends.append(engine.result(client).end)
        assert small.distance(*ends) < 1e-4
