"""Test bench and deployment for federated learning over links that fail.

FedPBC and seventeen other algorithms, simulated over unreliable links: pick a task, an algorithm
and a link scheme, and call :func:`simulate`; or use the command line, ``fedpbc --help``.

The public names are listed in ``__init__.pyi``. They are loaded when they are first used: the
command line must start at once, and importing torch takes seconds.
"""

from typing import Any

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedpbc")
    return _attribute(name)
