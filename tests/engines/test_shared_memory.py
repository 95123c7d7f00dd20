"""What is packed for another process is the same there; slots come back when nobody has them."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch
from torch import nn

from fedpbc.engines.shared_memory import Slots, pack, unpack


def there_and_back(value):
    shared = pack(value)
    try:
        return unpack(shared)
    finally:
        os.close(shared.file)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(12, dtype=torch.uint8)[3:9:2],
        torch.ones(1).expand(5),
        torch.zeros(0, 3),
        torch.tensor(3.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.randn(300, 300, dtype=torch.bfloat16),
    ],
)
def test_tensors(tensor):
    found = there_and_back({"it": tensor})["it"]
    assert found.dtype == tensor.dtype
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


@pytest.mark.parametrize("size", [3, 100_000])
def test_arrays(size):
    array = np.arange(size, dtype=np.int32).reshape(1, -1)
    found = there_and_back([array, array[:, ::2]])
    assert np.array_equal(found[0], array)
    assert np.array_equal(found[1], array[:, ::2])


def test_tensors_that_share_memory_still_do():
    layer = nn.Linear(3, 2)
    found = there_and_back([layer, layer.weight.detach(), layer.weight.detach()[1]])
    with torch.no_grad():
        found[0].weight[1, 0] = 7
    assert found[1][1, 0] == found[2][0] == 7


def test_the_same_object_stays_the_same_object():
    tensor, module = torch.ones(5), nn.Linear(2, 2)
    found = there_and_back([tensor, tensor, module, nn.Sequential(module)])
    assert found[0] is found[1]
    assert found[3][0] is found[2]


def test_changes_there_are_not_seen_here():
    tensor = torch.ones(5)
    shared = pack(tensor)
    unpack(shared).zero_()
    assert unpack(shared).sum() == 5
    assert tensor.sum() == 5
    os.close(shared.file)


def test_functions_and_classes_of_this_file_and_nameless_ones():
    class UserApp(nn.Tanh):
        pass

    found = there_and_back({"class": UserApp(), "function": lambda x: 2 * x})
    assert found["function"](4) == 8
    assert found["class"](torch.zeros(1)) == 0


# Slots


def test_a_slot_is_free_when_neither_the_tensor_nor_a_view_is_there():
    slots = Slots(4, torch.float32, 3)
    slot = slots.take()
    view = slots.lend(slot)[1:3]
    gc.collect()
    assert len(slots) == 2
    taken = {slots.take(), slots.take()}
    assert slot not in taken
    slots.view(slot).fill_(5)
    assert view.tolist() == [5, 5]
    del view
    assert slots.take() == slot


def test_slots_are_found_by_the_tensor():
    slots = Slots(4, torch.float64, 3)
    taken = [slots.take() for _ in range(3)]
    models = [slots.lend(slot) for slot in taken]
    assert [slots.find(model) for model in models] == taken
    assert slots.find(models[0][1:]) is None
    assert slots.find(torch.zeros(4, dtype=torch.float64)) is None


def test_slots_that_were_never_used_take_no_memory():
    # 400 GB, were they all used.
    slots = Slots(10_000_000, torch.float32, 10_000)
    slot = slots.take()
    assert slots.view(slot)[-1] == 0
