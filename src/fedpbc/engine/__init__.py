"""Where segments run: one after another, stacked in one tensor, on all cores, or on a cluster."""

from __future__ import annotations

from fedpbc.engine.choose import ENGINES, choose_engine
from fedpbc.engine.engine import Engine
from fedpbc.engine.pool import PoolEngine
from fedpbc.engine.ray import RayEngine
from fedpbc.engine.segment import Segment, Trained
from fedpbc.engine.serial import SerialEngine
from fedpbc.engine.stacked import StackedEngine

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
