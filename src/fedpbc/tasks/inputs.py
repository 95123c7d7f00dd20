"""A sample's inputs: one tensor, several in a tuple, or several by name; how a module gets them.

A module is called as PyTorch's users do: ``module(x)``, ``module(*tensors)`` for a tuple and
``module(**tensors)`` for a dictionary. What it returns may be a tensor, or an object with
``logits``, as Hugging Face's models return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

__all__ = [
    "Forward",
    "Inputs",
    "TensorGroup",
    "joined_inputs",
    "logits_of",
    "rows_of",
    "tensors_in",
]


class TensorGroup:
    """Several tensors with one row per sample each, by name, or by position.

    Example:
        >>> group = TensorGroup({"a": torch.zeros(3, 2), "b": torch.arange(3)})
        >>> len(group), group[1:].tensors["b"].tolist(), group.shapes
        (3, [1, 2], "'a' (2,), 'b' ()")
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, named: bool = True) -> None:
        self.tensors, self.named = dict(tensors), named

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: Any) -> TensorGroup:
        return self.map(lambda tensor: tensor[index])

    def map(self, function: Callable[[Tensor], Tensor]) -> TensorGroup:
        """The same group with a function of each tensor."""
        tensors = {name: function(tensor) for name, tensor in self.tensors.items()}
        return TensorGroup(tensors, named=self.named)

    def to(self, target: torch.device | torch.dtype) -> TensorGroup:
        """Move all tensors to a device, or convert those with floating-point numbers."""
        if isinstance(target, torch.dtype):
            return self.map(lambda x: x.to(target) if x.is_floating_point() else x)
        return self.map(lambda x: x.to(target))

    @property
    def shapes(self) -> str:
        """The shape of one sample's tensors, for messages."""
        shapes = ((name, tuple(x.shape[1:])) for name, x in self.tensors.items())
        return ", ".join(
            f"{name!r} {shape}" if self.named else f"{shape}" for name, shape in shapes
        )


Inputs = Tensor | TensorGroup


def tensors_in(inputs: Inputs) -> list[Tensor]:
    """The tensors of some inputs."""
    return [inputs] if isinstance(inputs, Tensor) else list(inputs.tensors.values())


@overload
def rows_of(inputs: Tensor, index: Tensor) -> Tensor: ...
@overload
def rows_of(inputs: TensorGroup, index: Tensor) -> TensorGroup: ...


def rows_of(inputs: Inputs, index: Tensor) -> Inputs:
    """Return ``inputs[index]`` in the same memory format; whole rows are copied, which is faster.

    Example:
        >>> rows_of(torch.tensor([[1, 2], [3, 4]]), torch.tensor([1])).tolist()
        [[3, 4]]
    """
    if isinstance(inputs, TensorGroup):
        return inputs.map(lambda tensor: rows_of(tensor, index))
    if inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last):
        return inputs.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return inputs.index_select(0, index) if inputs.is_contiguous() else inputs[index]


def joined_inputs(parts: Sequence[Inputs]) -> Inputs:
    """The inputs of several clients, one after another."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    groups = [part for part in parts if isinstance(part, TensorGroup)]
    tensors = {name: torch.cat([each.tensors[name] for each in groups]) for name in first.tensors}
    return TensorGroup(tensors, named=first.named)


class Forward:
    """Calls a module on inputs of any kind, and returns its outputs.

    With ``whole`` the outputs are what the module returns, else a tensor where there is one.
    """

    def __init__(self, module: nn.Module, *, whole: bool = False) -> None:
        self.module, self.whole = module, whole

    def __call__(self, inputs: Inputs) -> Any:
        """Return the outputs for a batch."""
        if isinstance(inputs, Tensor):
            result = self.module(inputs)
        elif inputs.named:
            result = self.module(**inputs.tensors)
        else:
            result = self.module(*inputs.tensors.values())
        return result if self.whole else logits_of(result)


def logits_of(result: Any) -> Any:
    """The tensor in what a module returned: itself, or its ``logits``; else what it returned."""
    if isinstance(result, Tensor):
        return result
    logits = getattr(result, "logits", None)
    return logits if isinstance(logits, Tensor) else result
