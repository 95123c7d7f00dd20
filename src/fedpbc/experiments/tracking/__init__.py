"""A run's numbers in TensorBoard, MLflow or Weights & Biases: off by default."""

from __future__ import annotations

from fedpbc.experiments.tracking.choose import (
    TRACKERS,
    check_trackers,
    checked_names,
    remove_tracker_files,
)
from fedpbc.experiments.tracking.tracker import State, TrackedRun, Tracker
from fedpbc.experiments.tracking.tracking import Tracking, TrackingPlan

__all__ = [
    "TRACKERS",
    "State",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "TrackingPlan",
    "check_trackers",
    "checked_names",
    "remove_tracker_files",
]
