from __future__ import annotations

import pytest
import torch

from fedpbc.engines.segment import after_round, all_finite


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0, 2.0], True),
        ([3e38, 3e38], True),  # Their sum overflows.
        ([1.0, float("nan")], False),
        ([float("inf"), float("-inf")], False),
    ],
)
def test_finite_models(values, finite):
    assert all_finite(torch.tensor(values)) == finite


def test_a_round_is_scaled():
    start, end = torch.tensor([1.0]), torch.tensor([2.0])
    assert after_round(start, end, 0.5).tolist() == [1.5]
    assert after_round(start, end, 1.0) is end
