"""A module becomes one flat vector and comes back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpbc.errors import InputError
from fedpbc.tasks.parameter_layout import Layout, layout_of, parameters_of

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@given(shapes, st.integers(1, 3))
def test_round_trip_alone_and_stacked(shapes, count):
    layout = Layout(tuple(f"p{k}" for k in range(len(shapes))), tuple(shapes))
    assert layout.dimension == sum(math.prod(shape) for shape in shapes)
    stack = torch.arange(count * layout.dimension, dtype=torch.float64).view(count, -1)
    for row, vector in enumerate(stack):
        parts = layout.parts(vector)
        assert [tuple(part.shape) for part in parts] == list(shapes)
        assert torch.equal(layout.flatten(parts), vector)
        for alone, stacked in zip(parts, layout.parts(stack), strict=True):
            assert torch.equal(stacked[row], alone)


def test_parts_are_views():
    layout, stack = Layout(("a", "b"), ((2,), (1, 2))), torch.zeros(3, 4)
    layout.parts(stack)[1][2, 0, 1] = 5
    assert stack[2, 3] == 5


def test_a_module_is_filled_and_read():
    module, other = (nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2)) for _ in "ab")
    layout = layout_of(module)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    vector = layout.flatten(parameters_of(module))
    assert torch.equal(vector, nn.utils.parameters_to_vector(module.parameters()))
    assert not vector.requires_grad
    layout.fill(parameters_of(other), vector)
    pictures = torch.randn(4, 2, 2, 2)
    assert torch.equal(other(pictures), module(pictures))
    module.load_state_dict(layout.named(vector + 1))
    assert torch.equal(layout.flatten(parameters_of(module)), vector + 1)
    assert torch.equal(layout.flatten(parameters_of(other)), vector)  # a copy, not a view


def test_the_order_in_memory_does_not_show():
    module = nn.Conv2d(3, 4, 2)
    before = layout_of(module).flatten(parameters_of(module))
    module = module.to(memory_format=torch.channels_last)
    assert torch.equal(layout_of(module).flatten(parameters_of(module)), before)


def test_parameters_without_gradient_are_left_out():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    assert layout_of(module).names == ("0.bias", "1.weight", "1.bias")
    assert len(parameters_of(module)) == 3


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.LazyLinear(2), "module: 'weight' has no shape yet: call the module on an input once"),
        (nn.Linear(3, 2, device="meta"), "module: 'weight' is on the device 'meta'"),
    ],
)
def test_parameters_without_a_shape_or_values_are_refused(module, line):
    with pytest.raises(InputError, match=line):
        layout_of(module)
