"""Load the compiled kernels.

They are built with the package if there is a C compiler. Without them PyTorch does the same work,
more slowly.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.util import find_spec

__all__ = ["kernels"]


@lru_cache(maxsize=1)
def kernels() -> ctypes.CDLL | None:
    """Return the library of compiled kernels, or None if it was not built.

    Example:
        >>> library = kernels()
    """
    # Plain C, not a Python extension: it does not depend on the version of Python.
    spec = find_spec("fedpbc.tasks._kernels")
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(spec.origin)
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    for function in (library.fedpbc_pool, library.fedpbc_unpool):
        function.argtypes = [pointer] * 3 + [number] * 4
        function.restype = None
    library.fedpbc_dense_steps.argtypes = [
        *(pointer, number, number, pointer, number),
        *(pointer, pointer, pointer, number, number, pointer, pointer, pointer),
    ]
    library.fedpbc_dense_steps.restype = None
    return library
