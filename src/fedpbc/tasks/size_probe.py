"""Once for every size of a layer: whether a compiled function has PyTorch's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

__all__ = ["SizeProbe"]

T = TypeVar("T")


class SizeProbe(Generic[T]):
    """A function of sizes that is called once for each, under the same settings of PyTorch.

    An evaluation of each client's own samples has a size for every client. A probe costs as much as
    several uses, so there are at most ``most`` of them; for further sizes ``unknown`` is returned.

    Example:
        >>> is_even = SizeProbe(lambda size: size % 2 == 0, unknown=False, most=1)
        >>> is_even(4), is_even(6), is_even(4)
        (True, False, True)
    """

    def __init__(self, probe: Callable[..., T], *, unknown: T, most: int = 64) -> None:
        self._probe, self._unknown, self._most = probe, unknown, most
        self._known: dict[tuple[object, ...], T] = {}

    def __call__(self, *size: int) -> T:
        """Return what the probe returned for this size, or ``unknown``."""
        key = (*size, *pytorch_settings())
        if key not in self._known:
            if len(self._known) >= self._most:
                return self._unknown
            self._known[key] = self._probe(*size)
        return self._known[key]

    def forget(self) -> None:
        """Begin again."""
        self._known.clear()


def pytorch_settings() -> tuple[object, ...]:
    """Return the settings that the bits of PyTorch's products depend on."""
    mkldnn = torch.backends.mkldnn
    switches = mkldnn.enabled, getattr(mkldnn, "deterministic", None)
    operators = [getattr(mkldnn, name, None) for name in ("matmul", "conv")]
    precisions = [getattr(operator, "fp32_precision", None) for operator in operators]
    if None in precisions:  # Before PyTorch 2.9.
        return *switches, torch.get_float32_matmul_precision()
    # Not this function: it raises once the precision of a single backend was set.
    return *switches, *precisions
