"""Choose the engine of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from fedpbc.engines.engine import Engine, one_thread
from fedpbc.engines.pool import PoolEngine
from fedpbc.engines.ray import RayEngine
from fedpbc.engines.serial import SerialEngine
from fedpbc.engines.stacked import StackedEngine
from fedpbc.errors import InputError
from fedpbc.options import nearest, options_of
from fedpbc.parallel import usable_cores
from fedpbc.tasks.stacked_training import StackAdvice
from fedpbc.tasks.task import StackedTask, Task

__all__ = ["ENGINES", "choose_engine"]

ENGINES: dict[str, Callable[..., Engine]] = {
    "serial": SerialEngine,
    "stacked": StackedEngine,
    "pool": PoolEngine,
    "ray": RayEngine,
}
"""Every engine by name."""

SHORT = 10.0
"""Seconds of work below which starting worker processes does not pay."""


def choose_engine(
    name: str,
    task: Task,
    *,
    workers: int = 0,
    ray_address: str = "",
    client_rounds: float = math.inf,
) -> tuple[Engine, str]:
    """Return the engine of that name, or the one that "auto" chooses, and the reason in one line.

    Measured time decides only between engines that give the same bits, since a run that is resumed
    elsewhere may choose another of them. Whether clients are stacked, which changes the last bits,
    depends on the task alone. ``workers`` is the number of processes (0: one per core),
    ``client_rounds`` how many client rounds the run will train in total.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> choose_engine("auto", Quadratic([[1.0]]))[1]
        'stacked: the quadratic task is a few vector operations'
    """
    options = {"workers": workers, "ray_address": ray_address}
    if name != "auto":
        if name not in ENGINES:
            raise InputError("engine", name, nearest(name, ["auto", *ENGINES]))
        return create(name, task, options), f"{name}: requested"
    if ray_address:
        return create("ray", task, options), "ray: the address of a cluster was given"
    advice = stack_advice(task)
    if advice.worthwhile:
        return create("stacked", task, options), f"stacked: {advice.why}"
    device = getattr(task, "device", None)
    if device is not None and device.type != "cpu":
        # Each process would have its own copy of the data on the device.
        return SerialEngine(task), f"serial: the task runs on the device {device}"
    if workers == 1 or usable_cores() == 1:
        return SerialEngine(task), "serial: one core is available"
    seconds = seconds_per_round(task) * client_rounds
    if seconds < SHORT:
        return SerialEngine(task), f"serial: only about {seconds:.2g} s of work"
    try:
        pool = PoolEngine(task, workers=workers)
    except InputError as error:
        return SerialEngine(task), f"serial: {error.expected}"
    return pool, f"pool: {pool.workers} processes, since {advice.why}"


def create(name: str, task: Task, options: dict[str, Any]) -> Engine:
    """Create an engine; raise if an option is set that it does not have."""
    supported = options_of(ENGINES[name])
    for option, value in options.items():
        if value and option not in supported:
            raise InputError(option, value, f"left out: the engine '{name}' has no such option")
    return ENGINES[name](task, **{k: v for k, v in options.items() if v})


def seconds_per_round(task: Task) -> float:
    """Measure how long one client takes for the local steps of a round."""
    model = task.init()
    with one_thread():
        task.local_steps(0, model, 0, 0, None)
        start = time.perf_counter()
        task.local_steps(0, model, 0, 0, None)
    return time.perf_counter() - start


def stack_advice(task: Task) -> StackAdvice:
    """Return whether to stack the clients of any task, and why."""
    if isinstance(task, StackedTask):
        return task.stack_advice()
    return StackAdvice(False, False, "the task has no stacked local steps")
