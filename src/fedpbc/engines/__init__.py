"""Engines run segments: one by one, stacked in one tensor, on all cores, or on a cluster."""

from __future__ import annotations

from fedpbc.engines.choose import ENGINES, choose_engine
from fedpbc.engines.engine import Engine
from fedpbc.engines.pool import PoolEngine
from fedpbc.engines.ray import RayEngine
from fedpbc.engines.segment import Segment, Trained
from fedpbc.engines.serial import SerialEngine
from fedpbc.engines.stacked import StackedEngine

__all__ = [
    "ENGINES",
    "Engine",
    "PoolEngine",
    "RayEngine",
    "Segment",
    "SerialEngine",
    "StackedEngine",
    "Trained",
    "choose_engine",
]
