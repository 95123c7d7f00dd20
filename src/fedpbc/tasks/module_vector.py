"""A module as one flat vector: parameters that are trained, and running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpbc.tasks.parameter_layout import (
    Layout,
    RunningStatistics,
    has_statistics,
    layout_of,
    tensors_of,
)

__all__ = ["ModuleVector"]


class ModuleVector:
    """The part of a module that a vector of its layout fills.

    Attributes:
        layout: of the vector: the parameters that clients share, then what stays on a client.
        parameters: those that require a gradient, in the order of the layout.

    Example:
        >>> vector = ModuleVector(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
        >>> vector.fill(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        >>> vector.module[1].running_var
        tensor([6.])
    """

    def __init__(
        self,
        module: nn.Module,
        running_statistics: RunningStatistics = "average",
        layout: Layout | None = None,
    ) -> None:
        self.module = module
        self.layout = layout_of(module, running_statistics) if layout is None else layout
        self.parameters, self._statistics = tensors_of(module, running_statistics)
        self._counts = [
            layer.num_batches_tracked
            for layer in module.modules()
            if has_statistics(layer) and isinstance(layer.num_batches_tracked, Tensor)
        ]

    @property
    def _tensors(self) -> list[Tensor]:
        return [*self.parameters, *self._statistics]

    def fill(self, flat: Tensor) -> None:
        """Copy a vector into the module."""
        self.layout.fill(self._tensors, flat)

    def flatten(self, out: Tensor | None = None) -> Tensor:
        """Return the module's values as a new vector, or in ``out``."""
        return self.layout.flatten(self._tensors, out)

    def count_batches(self, number: int) -> None:
        """Set how many batches the client has used so far.

        Layers with ``momentum=None`` weigh a new batch by this count. It is known from the client's
        history, and so it does not travel.
        """
        for count in self._counts:
            count.fill_(number)

    def corrections(self, correction: Tensor) -> list[Tensor]:
        """What is added to each gradient; nothing to those of parameters that a client keeps."""
        missing = sum(p.numel() for p in self.parameters) - len(correction)
        if missing:
            correction = torch.cat([correction, correction.new_zeros(missing)])
        sizes = [p.numel() for p in self.parameters]
        parts = torch.split(correction, sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def shared(self, gradients: Sequence[Tensor]) -> Tensor:
        """The gradients of the parameters that clients share, as a vector."""
        return torch.cat([g.detach().reshape(-1) for g in gradients])[: self.layout.trained]

    def statistics(self) -> Tensor:
        """The running statistics as a vector."""
        empty = self.parameters[0].new_empty(0)
        return torch.cat([empty, *(s.detach().reshape(-1) for s in self._statistics)])
