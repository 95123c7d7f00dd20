"""The names of losses, without PyTorch: settings are read before it is loaded."""

from __future__ import annotations

from typing import Literal

__all__ = ["LossName"]

LossName = Literal[
    "cross_entropy",
    "next_token",
    "binary_cross_entropy",
    "squared",
    "absolute",
    "huber",
    "model",
]
