"""Is Flower installed, in a version whose Fleet API this package speaks?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedpbc.errors import FedpbcError, MissingExtraError

__all__ = ["require_flower"]

SUPPORTED = ("1.41", "1.42")
"""Minor versions of Flower."""


def require_flower() -> None:
    """Raise an error that names the extra unless a supported version of Flower is installed."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise MissingExtraError("a real fleet", "flower") from None
    if ".".join(installed.split(".")[:2]) not in SUPPORTED:
        raise FedpbcError(
            f"a fleet needs Flower {' or '.join(SUPPORTED)}, but {installed} is installed: "
            "pip install 'fedpbc[flower]'"
        )
