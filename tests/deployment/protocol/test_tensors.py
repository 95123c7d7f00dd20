from __future__ import annotations

import torch

from fedpbc.deployment.protocol.tensors import checksum, dtype_name, to_vector


def test_a_model_as_a_vector():
    model = torch.zeros(2, requires_grad=True)
    assert dtype_name(model) == to_vector(model).dtype == "float32"
    assert to_vector(model).data == bytes(8)
    # That of the model alone, as logs of earlier versions have it.
    assert checksum({"model": model}) == "6522df69"


def test_a_checksum_is_of_all_vectors_in_any_order():
    a, b = torch.ones(2), torch.arange(3.0)
    assert checksum({"a": a, "b": b}) == checksum({"b": b, "a": a})
    others = ({"a": a}, {"b": b}, {"a": a, "b": b + 1}, {"a": b, "b": a}, {})
    assert len({checksum(each) for each in ({"a": a, "b": b}, *others)}) == 6
