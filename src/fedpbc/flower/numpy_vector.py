"""NumPy vectors with the few operations that the package's client rules use.

The rules are written for PyTorch's vectors. A device that trains with another library should not
have to import PyTorch for them, which takes seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["NumpyVector", "to_numpy", "vector_for"]


class NumpyVector(np.ndarray[Any, Any]):
    """An array with PyTorch's names for conversions.

    Example:
        >>> v = np.array([3.0, 4.0], np.float32).view(NumpyVector)
        >>> v.double().dtype.name, v.norm()
        ('float64', 5.0)
    """

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def double(self) -> NumpyVector:
        """In double precision."""
        return self.astype(np.float64, copy=False).view(NumpyVector)

    def to(self, dtype: Any) -> NumpyVector:
        """Converted to a type."""
        return self.astype(dtype, copy=False).view(NumpyVector)

    def clone(self) -> NumpyVector:
        """A copy."""
        return self.copy()

    def norm(self) -> float:
        """The Euclidean norm."""
        return float(np.sqrt(np.square(np.asarray(self, np.float64)).sum()))

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def equal(self, other: ArrayLike) -> bool:
        """Whether all values are the same."""
        return np.array_equal(self, other)

    def new_tensor(self, values: ArrayLike) -> NumpyVector:
        """A vector of the same type."""
        return np.asarray(values, self.dtype).view(NumpyVector)


def vector_for(owner: type, array: NDArray[Any]) -> Any:
    """The vector that a rule's class computes with: PyTorch's only from outside the package.

    What others have written may use all of PyTorch.
    """
    if owner.__module__.startswith("fedpbc.algorithms."):
        return array.view(NumpyVector)
    import torch

    return torch.from_numpy(np.array(array))


def to_numpy(vector: Any) -> NDArray[Any]:
    """A rule's vector as a plain array."""
    return np.asarray(vector)
