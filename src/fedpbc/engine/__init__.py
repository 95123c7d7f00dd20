"""Where segments run: one after another, or stacked in one tensor."""

from __future__ import annotations

from collections.abc import Callable

from fedpbc.engine.engine import Engine
from fedpbc.engine.segment import Segment, Trained
from fedpbc.engine.serial import SerialEngine
from fedpbc.engine.stacked import StackedEngine
from fedpbc.errors import InputError
from fedpbc.options import nearest
from fedpbc.tasks.task import StackedTask, Task

__all__ = [
    "ENGINES",
    "Engine",
    "Segment",
    "SerialEngine",
    "StackedEngine",
    "Trained",
    "choose_engine",
]

ENGINES: dict[str, Callable[[Task], Engine]] = {"serial": SerialEngine, "stacked": StackedEngine}


def choose_engine(name: str, task: Task) -> tuple[Engine, str]:
    """The engine of that name, and one line on why; «auto» picks.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> choose_engine("auto", Quadratic([[1.0]]))[1]
        'stacked: the quadratic task is a few vector operations'
    """
    if name == "auto":
        if not isinstance(task, StackedTask):
            return SerialEngine(task), "serial: the task has no stacked local steps"
        advice = task.stack_advice()
        chosen = "stacked" if advice.worthwhile else "serial"
        return ENGINES[chosen](task), f"{chosen}: {advice.why}"
    if name not in ENGINES:
        raise InputError("engine", name, nearest(name, ["auto", *ENGINES]))
    return ENGINES[name](task), f"{name}: asked for"
