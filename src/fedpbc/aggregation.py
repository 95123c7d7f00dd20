"""How a server combines uploads: by their mean, or by what single clients cannot move.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018 (coordinate-wise trimmed mean and median).
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

from annotated_types import Ge, Gt, Lt

from fedpbc.compiled import compiled_library
from fedpbc.errors import InputError
from fedpbc.options import Help, check_fields, check_kind

__all__ = ["Aggregation", "mean"]

Vector = Any
"""A flat tensor; not imported, since settings are read without torch."""

TRIM = 0.2
"""The share that a trimmed mean leaves out at each end, where none is given."""
VALUES_AT_ONCE = 1 << 24
"""Numbers that are sorted together: a bound on memory, without effect on the result."""


def mean(vectors: Iterable[Vector]) -> Vector:
    """Return the mean, summed in double precision in the given order, in the type of the first.

    Example:
        >>> import torch
        >>> mean([torch.tensor([1.0]), torch.tensor([2.0])])
        tensor([1.5000])
    """
    # Consumed one at a time, so only one of the clients' models need exist.
    check_kind("vectors", vectors, Iterable, "vectors, one for each client")
    remaining = iter(vectors)
    first = next(remaining, None)
    if first is None or not hasattr(first, "double"):
        raise InputError("vectors", type(first).__name__, "at least one tensor")
    total, count = first.double(), 1
    if total is first:  # Nobody else's vector is changed.
        total = first.clone()
    add = adder(first, total)
    for vector in remaining:
        add(total, vector)
        count += 1
    total /= count
    return total.to(first.dtype)


def adder(first: Vector, total: Vector) -> Callable[[Vector, Vector], object]:
    """How vectors like the first are added to a total in double precision, in place.

    PyTorch takes twice the time of the compiled function, for the same bits.
    """
    kernel = _add_kernel()
    is_tensor = str(getattr(first, "layout", "")) == "torch.strided"
    if kernel is None or not is_tensor or str(first.dtype) != "torch.float32":
        return operator.iadd
    if first.device.type != "cpu" or first.requires_grad or not total.is_contiguous():
        return operator.iadd

    def add(total: Vector, vector: Vector) -> None:
        is_alike = vector.dtype == first.dtype and vector.layout == first.layout
        is_alike = is_alike and vector.shape == first.shape and vector.device == first.device
        if is_alike and vector.is_contiguous() and not vector.requires_grad:
            kernel(total.data_ptr(), vector.data_ptr(), vector.numel())
        else:
            total += vector

    return add


@lru_cache(maxsize=1)
def _add_kernel() -> Callable[[int, int, int], None] | None:
    """The compiled function, or None if it was not built."""
    library = compiled_library()
    # A library that an earlier version of the package built lacks it.
    if library is None or not hasattr(library, "fedpbc_add"):
        return None
    add = library.fedpbc_add
    add.argtypes, add.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t], None
    return cast("Callable[[int, int, int], None]", add)


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How uploads are combined instead of by the mean, and how far a single update may go.

    Attributes:
        name: ``mean``; ``trimmed_mean``: in every coordinate without the ``int(trim·n)`` smallest
            and as many largest of n values; ``median``: in every coordinate.
        trim: the share that a trimmed mean leaves out at each end; None: 0.2.
        clip: the largest Euclidean norm of an update, per round of local work: a longer one is
            shortened to it. 0 disables it.

    Example:
        >>> import torch
        >>> vectors = [torch.tensor([v]) for v in (1.0, 2.0, 6.0, 9e9)]
        >>> Aggregation(name="median").mean_of(vectors)
        tensor([4.])
        >>> Aggregation(name="trimmed_mean", trim=0.25).mean_of(vectors)
        tensor([4.])
    """

    name: Annotated[
        Literal["mean", "trimmed_mean", "median"],
        Help("How uploads are combined: mean, trimmed_mean or median"),
    ] = "mean"
    trim: Annotated[float, Gt(0), Lt(0.5)] | None = None
    clip: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.name == "trimmed_mean" and self.trim is None:
            object.__setattr__(self, "trim", TRIM)
        elif self.name != "trimmed_mean" and self.trim is not None:
            raise InputError(
                f"aggregation.trim is {self.trim!r}, but the aggregation {self.name!r} does not "
                "use it: choose another with --aggregation trimmed_mean"
            )

    @property
    def is_mean(self) -> bool:
        """Whether uploads are averaged, clipped or not."""
        return self.name == "mean"

    def mean_of(self, vectors: Iterable[Vector]) -> Vector:
        """The mean, or what was chosen instead of it, in the type of the first vector."""
        if self.is_mean:
            return mean(vectors)
        every = list(vectors)
        if not every:
            return mean(every)  # Which reports it.
        return self.robust_mean(every).to(every[0].dtype)

    def robust_mean(self, vectors: Sequence[Vector]) -> Vector:
        """The trimmed mean or median in every coordinate, in double precision."""
        import torch  # Late: a client needs no torch for its rule.

        n = len(vectors)
        # A median is a mean trimmed down to the middle one or two.
        cut = (n - 1) // 2 if self.name == "median" else int((self.trim or TRIM) * n)
        size = max(VALUES_AT_ONCE // n, 1)
        pieces = []
        for begin in range(0, len(vectors[0]), size):
            rows = [vector[begin : begin + size].double() for vector in vectors]
            ordered = torch.stack(rows).sort(dim=0).values
            total = ordered[cut].clone()
            for row in ordered[cut + 1 : n - cut]:
                total += row
            pieces.append(total / (n - 2 * cut))
        return torch.cat(pieces)

    def clipped(self, start: Vector, end: Vector, rounds: int) -> Vector:
        """A client's model, no further from where it started than so many rounds allow.

        Example:
            >>> import torch
            >>> start, end = torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])
            >>> Aggregation(clip=1.0).clipped(start, end, rounds=2)
            tensor([1.2000, 1.6000])
        """
        if not self.clip:
            return end
        delta, longest = end.double() - start.double(), self.clip * rounds
        norm = float(delta.norm())
        if norm <= longest:
            return end
        return (start.double() + delta * (longest / norm)).to(end.dtype)
