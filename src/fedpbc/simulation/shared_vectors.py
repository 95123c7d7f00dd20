"""Copies of an algorithm's vectors for its clients, which its in-place changes do not reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedpbc.algorithms.client import Vectors
from fedpbc.errors import InputError

__all__ = ["SharedVectors", "Versions", "snapshot", "tensors_in"]


RECENT = 4


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a nested value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)


def snapshot(value: Any) -> Any:
    """A copy that later rounds do not change, unless they change a tensor in place."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {key: snapshot(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(snapshot, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def version_of(tensor: Tensor) -> int:
    """PyTorch's count of the changes in place; a view of NumPy's makes some that it misses."""
    return 0 if tensor.is_inference() else tensor._version


class SharedVectors:
    """For each vector of an algorithm the copy that clients share: one object until it changes.

    Example:
        >>> import torch
        >>> shared, x = SharedVectors(copies=True), torch.zeros(2)
        >>> held = shared.of(x)
        >>> x += 1
        >>> held, shared.of(x)
        (tensor([0., 0.]), tensor([1., 1.]))
    """

    def __init__(self, *, copies: bool) -> None:
        """Without copies, for who changes nothing in place: the vectors themselves."""
        self._needed = copies
        # By vector: its copy, its version then, and the period in which they were compared.
        self._copies = WeakTensorKeyDictionary()
        self._period = 0
        # Those asked for in this period, with their version and copy: weak keys are slow.
        self._recent: dict[int, tuple[Tensor, int, Tensor]] = {}

    def begin_period(self) -> None:
        """Vectors may have changed since, in ways that PyTorch does not count."""
        self._period += 1
        self._recent.clear()

    def of(self, vector: Tensor) -> Tensor:
        """The copy of a vector as it is now."""
        if not self._needed:
            return vector
        # Every client asks for the same few.
        recent = self._recent.get(id(vector))
        if recent is not None and recent[0] is vector and recent[1] == version_of(vector):
            return recent[2]
        if len(self._recent) >= RECENT:
            self._recent.clear()
        copy = self._compared(vector)
        self._recent[id(vector)] = vector, version_of(vector), copy
        return copy

    def _compared(self, vector: Tensor) -> Tensor:
        copy: Tensor | None = None
        if vector in self._copies:
            known: tuple[Tensor, int, int] = self._copies[vector]
            copy = known[0]
            if known[1:] == (version_of(vector), self._period):
                return copy
        if copy is None or not copy.equal(vector):
            copy = vector.clone()
        self._copies[vector] = copy, version_of(vector), self._period
        return copy

    def all_of(self, vectors: Vectors) -> Vectors:
        """The copies of vectors by name; anything else is left to whoever checks it."""
        return {n: self.of(v) if isinstance(v, Tensor) else v for n, v in vectors.items()}


class Versions:
    """How often the tensors of an algorithm's attributes had been changed in place."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._found = {
            name: [(tensor, version_of(tensor)) for tensor in tensors_in(value)]
            for name, value in state.items()
        }

    def check(self, algorithm: str) -> None:
        """Raise InputError if one was changed since: a round that fails could not be undone."""
        for name, tensors in self._found.items():
            if any(version_of(tensor) != version for tensor, version in tensors):
                raise InputError(
                    f"{algorithm} changes self.{name} in place, which a round that fails could "
                    f"not undo: assign a new one, such as self.{name} = self.{name} + … "
                    f"instead of self.{name} += …"
                )
