"""A run's metrics in TensorBoard, MLflow or Weights & Biases: off by default."""

from __future__ import annotations

from fedpbc.experiments.tracking.choose import TRACKERS, check_trackers, checked_names
from fedpbc.experiments.tracking.tracker import State, TrackedRun
from fedpbc.experiments.tracking.tracking import Tracking

__all__ = ["TRACKERS", "State", "TrackedRun", "Tracking", "check_trackers", "checked_names"]
