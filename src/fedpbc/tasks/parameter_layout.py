"""Conversion between a module's parameters and one flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpbc.errors import InputError
from fedpbc.options import check_kind, check_type

__all__ = ["Layout", "layout_of", "parameters_of"]


Size = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in the order of its flat vector.

    Example:
        >>> layout_of(nn.Linear(3, 2)).shapes
        ((2, 3), (2,))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for name, value in (("names", self.names), ("shapes", self.shapes)):
            check_kind(name, value, (tuple, list), "a tuple")
        for shape in self.shapes:
            check_kind("shapes", shape, (tuple, list), "a tuple for each parameter")
            check_type("shapes", list(shape), list[Size])
        if len(self.names) != len(self.shapes):
            raise InputError(f"{len(self.names)} names have {len(self.shapes)} shapes")

    @property
    def dimension(self) -> int:
        """d, the length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return views of a vector [d], or of a stack [n, d], in the parameters' shapes."""
        if not isinstance(flat, Tensor) or not flat.dim() or flat.shape[-1] != self.dimension:
            shape = tuple(flat.shape) if isinstance(flat, Tensor) else type(flat).__name__
            raise InputError("flat", shape, f"a vector of {self.dimension} numbers")
        lead = flat.shape[:-1]
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = torch.split(flat, sizes, dim=-1)
        return [p.view((*lead, *shape)) for p, shape in zip(pieces, self.shapes, strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the same by name, as for ``module.load_state_dict(…, strict=False)``."""
        return dict(zip(self.names, self.parts(flat), strict=True))

    def _check(self, parameters: Sequence[Tensor]) -> None:
        is_list = isinstance(parameters, Sequence) and len(parameters) == len(self.names)
        if not is_list or not all(isinstance(each, Tensor) for each in parameters):
            raise InputError(
                "parameters", type(parameters).__name__, f"a list of {len(self.names)} tensors"
            )

    def fill(self, parameters: Sequence[Tensor], flat: Tensor) -> None:
        """Copy a vector into the parameters."""
        self._check(parameters)
        with torch.no_grad():
            for parameter, part in zip(parameters, self.parts(flat), strict=True):
                parameter.copy_(part)

    def flatten(self, parameters: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Return the parameters' values as a new vector, or in ``out``."""
        self._check(parameters)
        return torch.cat([p.detach().reshape(-1) for p in parameters], out=out)


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained and averaged: those that require a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of a module's trained parameters."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for name, parameter in named:
        if is_lazy(parameter):
            raise InputError(f"module: '{name}' has no shape yet: call the module on an input once")
        if parameter.is_meta:
            raise InputError(f"module: '{name}' is on the device 'meta', without values")
    return Layout(
        tuple(name for name, _ in named), tuple(tuple(parameter.shape) for _, parameter in named)
    )
