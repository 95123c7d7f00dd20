"""The functions in C, which are built with the package if there is a C compiler."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.util import find_spec

__all__ = ["compiled_library", "wide_library"]


@lru_cache(maxsize=1)
def compiled_library() -> ctypes.CDLL | None:
    """Return the library, or None if it was not built."""
    # Plain C, not a Python extension: it does not depend on the version of Python.
    spec = find_spec("fedpbc._kernels")
    if spec is None or spec.origin is None:
        return None
    return ctypes.CDLL(spec.origin)


def wide_library() -> ctypes.CDLL | None:
    """Return the library if it has functions for wide registers, and this processor has those."""
    library = compiled_library()
    # A library that an earlier version of the package built lacks them.
    if library is None or not hasattr(library, "fedpbc_has_wide_registers"):
        return None
    return library if library.fedpbc_has_wide_registers() else None
