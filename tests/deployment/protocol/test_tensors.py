from __future__ import annotations

import torch

from fedpbc.deployment.protocol.tensors import checksum, dtype_name, to_vector


def test_a_model_as_a_vector():
    model = torch.zeros(2, requires_grad=True)
    assert dtype_name(model) == to_vector(model).dtype == "float32"
    assert to_vector(model).data == bytes(8)
    assert checksum(model) == "6522df69"
