"""Which vectors a client must upload, and how many values each has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.algorithms.trial import trial_sizes
from fedpbc.deployment.protocol.messages import MessageError, Vector
from fedpbc.deployment.protocol.tensors import dtype_name
from fedpbc.engines.segment import STATISTICS, all_finite
from fedpbc.simulation.model_parts import ModelParts

__all__ = ["REPLY_OVERHEAD", "UploadCheck"]

REPLY_OVERHEAD = 2**20
"""Bytes of a reply in addition to its vectors."""


class UploadCheck:
    """Checks uploads against the algorithm's rule for clients.

    The number of values of each vector is that of a trial, in which the rule runs on the initial
    model without any step: the server's rule adds up what clients send, and a vector of another
    size would stop it, or be spread over the whole sum. Where the trial fails, 1 to d are allowed.

    Attributes:
        sizes: the number of values of each vector, by name; None: 1 to d.

    Example:
        >>> from fedpbc.algorithms import Scaffold, ServerInit
        >>> UploadCheck(Scaffold(ServerInit(torch.zeros(3), clients=2))).sizes
        {'model': 3, 'control_change': 3}
    """

    def __init__(self, algorithm: Algorithm, parts: ModelParts | None = None) -> None:
        """Prepare for an algorithm fresh from its constructor, and what its model has besides."""
        x0, rule = algorithm.x, algorithm.client_rule()
        statistics = 0 if parts is None or parts.statistics is None else len(parts.statistics)
        self._dtype, self._dimension = dtype_name(x0), len(x0) + statistics
        self.sizes: dict[str, int | None] = {"model": len(x0) + statistics}
        if rule is not None:
            trial = trial_sizes(rule, x0, algorithm.message(0))
            self.sizes = {name: trial.get(name) for name in rule.uploads}
            if "model" in self.sizes:
                self.sizes["model"] = len(x0) + statistics
            elif statistics:
                self.sizes[STATISTICS] = statistics
        self.largest = sum(size or len(x0) for size in self.sizes.values()) * x0.element_size()
        """Bytes of an upload's vectors, at most."""

    def checked(self, upload: Mapping[str, Vector]) -> dict[str, Tensor]:
        """Convert an untrusted upload; a MessageError says what is wrong with it."""
        if set(upload) != set(self.sizes):
            given, expected = (
                ", ".join(sorted(names)) or "nothing" for names in (upload, self.sizes)
            )
            raise MessageError(f"uploads {given}, not {expected}")
        return {name: self._checked(name, upload[name], size) for name, size in self.sizes.items()}

    def _checked(self, name: str, vector: Vector, size: int | None) -> Tensor:
        try:
            values = torch.from_numpy(vector.array(self._dtype, size))
        except MessageError as error:
            raise MessageError(str(error) if name == "model" else f"{name}: {error}") from None
        if not 1 <= len(values) <= self._dimension:
            expected = f"1 to {self._dimension:,}"
            raise MessageError(f"{name}: vector of {len(values):,} values, not {expected}")
        if not all_finite(values):
            raise MessageError(f"{name} is not finite")
        return values
