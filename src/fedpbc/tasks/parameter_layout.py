"""Conversion between a module's parameters and statistics, and one flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpbc.errors import InputError
from fedpbc.options import check_kind, check_type

__all__ = [
    "Layout",
    "RunningStatistics",
    "has_statistics",
    "layout_of",
    "parameters_of",
    "tensors_of",
]


Size = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in the order of its flat vector.

    The algorithm sees the parameters that clients share. Behind them in the vector are those that
    stay on a client, if there are any, and at its end running statistics: no gradient changes them.

    Attributes:
        statistics: how many of the last names are running statistics.
        kept: how many of the last names stay on the client; 0, or the statistics and what goes with
            them.

    Example:
        >>> layout_of(nn.Linear(3, 2)).shapes
        ((2, 3), (2,))
        >>> layout = layout_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
        >>> layout.names[-2:], layout.trained, layout.dimension
        (('1.running_mean', '1.running_var'), 12, 16)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    statistics: Size = 0
    kept: Size = 0

    def __post_init__(self) -> None:
        for name, value in (("names", self.names), ("shapes", self.shapes)):
            check_kind(name, value, (tuple, list), "a tuple")
        for shape in self.shapes:
            check_kind("shapes", shape, (tuple, list), "a tuple for each parameter")
            check_type("shapes", list(shape), list[Size])
        if len(self.names) != len(self.shapes):
            raise InputError(f"{len(self.names)} names have {len(self.shapes)} shapes")
        for name in ("statistics", "kept"):
            check_type(name, getattr(self, name), Size)
        if max(self.statistics, self.kept) > len(self.names) or 0 < self.kept < self.statistics:
            raise InputError("kept", self.kept, "0, or at least the statistics")

    @property
    def dimension(self) -> int:
        """d, the length of the vector."""
        return self._length(len(self.names))

    @property
    def trained(self) -> int:
        """The length of the part that the algorithm sees: the parameters that clients share."""
        return self._length(len(self.names) - max(self.statistics, self.kept))

    @property
    def sent(self) -> int:
        """The length of the part that travels: without what stays on the client."""
        return self._length(len(self.names) - self.kept)

    def _length(self, names: int) -> int:
        return sum(math.prod(shape) for shape in self.shapes[:names])

    def without_kept(self) -> Layout:
        """The layout of the part that travels."""
        count = len(self.names) - self.kept
        statistics = 0 if self.kept else self.statistics
        return Layout(self.names[:count], self.shapes[:count], statistics)

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


RunningStatistics = Literal["average", "client", "refuse"]
"""What becomes of layers that keep running statistics: see :func:`layout_of`."""


def has_statistics(layer: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its inputs, as BatchNorm does."""
    return bool(getattr(layer, "track_running_stats", False))


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained: those that require a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


def tensors_of(
    module: nn.Module, running_statistics: RunningStatistics = "average"
) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Return the parameters and the statistics of a module's vector, in the order of its layout."""
    shared, kept, statistics = _named(module, running_statistics)
    parameters = [*shared.values(), *kept.values()]
    return cast(list[nn.Parameter], parameters), list(statistics.values())


def _named(
    module: nn.Module, running_statistics: RunningStatistics
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """The parameters that clients share and those that they keep, and the statistics, by name.

    Parameters that do not require a gradient are none of these.
    """
    layers = {name: layer for name, layer in module.named_modules() if has_statistics(layer)}
    statistics_layer_ids = {
        id(p) for layer in layers.values() for p in layer.parameters(recurse=False)
    }
    shared: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            stays = running_statistics == "client" and id(parameter) in statistics_layer_ids
            (kept if stays else shared)[name] = parameter
    statistics = {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, layer in layers.items()
        for name, buffer in layer.named_buffers(recurse=False)
        # The count of batches is an integer that both sides know: it does not travel.
        if buffer.is_floating_point()
    }
    return shared, kept, statistics


def layout_of(module: nn.Module, running_statistics: RunningStatistics = "average") -> Layout:
    """Return the layout of a module's trained parameters and running statistics.

    The statistics are averaged with the model, or with "client" they stay on the client, together
    with the parameters of their layers (FedBN). With "refuse", such layers raise an InputError.
    """
    if running_statistics == "refuse":
        refuse_running_statistics(module)
    shared, kept, statistics = _named(module, running_statistics)
    named = {**shared, **kept, **statistics}
    for name, tensor in named.items():
        if is_lazy(tensor):
            raise InputError(f"module: '{name}' has no shape yet: call the module on an input once")
        if tensor.is_meta:
            raise InputError(f"module: '{name}' is on the device 'meta', without values")
    stays = len(kept) + len(statistics) if running_statistics == "client" else 0
    shapes = tuple(tuple(tensor.shape) for tensor in named.values())
    return Layout(tuple(named), shapes, len(statistics), stays)


def refuse_running_statistics(module: nn.Module) -> None:
    """Raise InputError if a layer keeps running statistics."""
    for name, layer in module.named_modules():
        if has_statistics(layer):
            kind = type(layer).__name__
            raise InputError(
                f"layer {name or kind!r} ({kind}) keeps running statistics: use GroupNorm, "
                "track_running_stats=False, or running_statistics='average' or 'client'"
            )
