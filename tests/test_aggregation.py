"""The mean over clients: summed in double precision, in the given order, compiled or not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import aggregation, mean

vectors = st.integers(1, 40).flatmap(
    lambda length: st.lists(
        st.lists(st.floats(width=32), min_size=length, max_size=length), min_size=1, max_size=6
    )
)


def plain_mean(vectors):
    """As the text says, in PyTorch."""
    total = vectors[0].double().clone()
    for vector in vectors[1:]:
        total = total + vector.double()
    return (total / len(vectors)).to(vectors[0].dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and torch.equal(a.isnan(), b.isnan())
        and a.nan_to_num().equal(b.nan_to_num())
    )


@given(rows=vectors)
def test_the_bits_are_those_of_a_sum_in_double_precision(rows):
    given_vectors = [torch.tensor(row, dtype=torch.float32) for row in rows]
    kept = [vector.clone() for vector in given_vectors]
    assert same_bits(mean(given_vectors), plain_mean(given_vectors))
    assert all(same_bits(a, b) for a, b in zip(given_vectors, kept, strict=True))


@pytest.mark.parametrize(
    "others",
    [
        [torch.rand(6).double(), torch.rand(6)],
        [torch.rand(12)[::2], torch.rand(6)],
        [torch.rand(6, requires_grad=True), torch.rand(6)],
        [torch.rand(1), torch.rand(6)],
    ],
    ids=["another type", "not contiguous", "with a gradient", "one number for all"],
)
def test_vectors_that_are_unlike_the_first_are_added_all_the_same(others):
    first = torch.rand(6)
    assert mean([first, *others]).detach().equal(plain_mean([first, *others]).detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_have_the_same_mean(dtype):
    rows = [torch.rand(9).to(dtype) for _ in range(3)]
    assert mean(rows).equal(plain_mean(rows))


@pytest.mark.parametrize("library", [None, object()], ids=["not built", "built before"])
def test_without_the_compiled_function_the_bits_are_the_same(monkeypatch, library):
    rows = [torch.rand(1000) for _ in range(4)]
    compiled = mean(rows)
    aggregation._add_kernel.cache_clear()
    monkeypatch.setattr(aggregation, "compiled_library", lambda: library)
    try:
        assert mean(rows).equal(compiled)
    finally:
        aggregation._add_kernel.cache_clear()
