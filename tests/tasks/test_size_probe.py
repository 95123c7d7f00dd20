"""A probe of a size is made once, for as many sizes as are allowed, under the same settings."""

import pytest
import torch

from fedpbc.tasks.size_probe import SizeProbe


def counted(most=64):
    calls = []
    return calls, SizeProbe(lambda *size: calls.append(size) or sum(size), unknown=-1, most=most)


def test_each_size_is_probed_once():
    calls, probe = counted()
    assert [probe(1, 2), probe(3, 4), probe(1, 2)] == [3, 7, 3]
    assert calls == [(1, 2), (3, 4)]


def test_further_sizes_are_unknown_and_cost_nothing():
    calls, probe = counted(most=2)
    assert [probe(k) for k in (1, 2, 3, 3, 2, 1)] == [1, 2, -1, -1, 2, 1]
    assert calls == [(1,), (2,)]
    probe.forget()
    assert probe(3) == 3


def test_other_settings_of_pytorch_are_probed_anew():
    calls, probe = counted()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)  # The default has another name once it was set.
    probe(5)
    try:
        torch.set_float32_matmul_precision("medium")
        probe(5)
    finally:
        torch.set_float32_matmul_precision(before)
    was_enabled = torch._C._get_mkldnn_enabled()
    try:
        torch._C._set_mkldnn_enabled(not was_enabled)
        probe(5)
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)
    probe(5)
    assert calls == [(5,)] * 3


@pytest.mark.parametrize(
    ("backend", "operator", "precision", "is_other"),
    [
        ("mkldnn", "matmul", "bf16", True),
        ("mkldnn", "conv", "bf16", True),
        # Of no concern on a CPU, but PyTorch's older function for all backends raises from then on.
        ("cuda", "matmul", "tf32", False),
    ],
)
def test_the_precision_of_a_single_backend_may_be_set(backend, operator, precision, is_other):
    setting = getattr(getattr(torch.backends, backend), operator, None)
    before = getattr(setting, "fp32_precision", None)
    if before is None:
        pytest.skip("before PyTorch 2.9 all backends have one precision")
    calls, probe = counted()
    probe(5)
    try:
        setting.fp32_precision = precision
        probe(5)
    finally:
        setting.fp32_precision = before
    probe(5)
    assert calls == [(5,)] * (2 if is_other else 1)
