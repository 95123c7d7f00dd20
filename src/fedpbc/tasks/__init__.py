"""Tasks: what is minimised. A task has ``init``, ``local_steps`` and ``evaluate``."""

from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.quadratic import Quadratic
from fedpbc.tasks.supervised import Supervised
from fedpbc.tasks.task import Evaluation, Gradients, StackedTask, Task, WithGradients

__all__ = [
    "Evaluation",
    "Gradients",
    "LocalTraining",
    "Quadratic",
    "StackedTask",
    "Supervised",
    "Task",
    "WithGradients",
]
