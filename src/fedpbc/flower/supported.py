"""Which versions of Flower the strategies and the mod were tested with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedpbc.errors import FedpbcError, MissingExtraError

__all__ = ["SUPPORTED", "UnsupportedFlowerError", "check_flower"]

SUPPORTED = ("1.41", "1.42")
"""Minor versions; docs/flower.md says what was tested with which."""


class UnsupportedFlowerError(FedpbcError, ImportError):
    """A version of Flower that was not tested."""


def check_flower() -> None:
    """Raise an error that names the extra unless a supported version of Flower is installed."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise MissingExtraError("fedpbc.flower", "flower") from None
    if ".".join(installed.split(".")[:2]) not in SUPPORTED:
        supported = " and ".join(SUPPORTED)
        raise UnsupportedFlowerError(
            f"fedpbc.flower supports Flower {supported}, but {installed} is installed: "
            "pip install 'fedpbc[flower]'"
        )
