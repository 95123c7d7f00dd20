"""Which engine a run gets, and why."""

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
from fedpbc.tasks.task import StackedTask, Task

__all__ = ["ENGINES", "choose_engine"]

ENGINES: dict[str, Callable[..., Engine]] = {
    "serial": SerialEngine,
    "stacked": StackedEngine,
    "pool": PoolEngine,
    "ray": RayEngine,
}

SHORT = 10.0
"""Seconds of work that are over before processes of one's own have paid for their start."""


def choose_engine(
    name: str,
    task: Task,
    *,
    workers: int = 0,
    ray_address: str = "",
    client_rounds: float = math.inf,
) -> tuple[Engine, str]:
    """The engine of that name, and one line on why; «auto» picks.

    Only engines that give the same bits are picked by how long things take here and now: a run that
    is resumed elsewhere may pick another of them. Whether clients are stacked, which changes the
    last bits, is a rule of the task alone.

    Args:
        name: of an engine, or «auto».
        task: what is trained.
        workers: processes, for engines that have any; 0: one a core.
        ray_address: the cluster, for the engine «ray»; empty: this machine.
        client_rounds: how often a client's local steps of a round will have to be made.

    Example:
        >>> from fedpbc.tasks import Quadratic
        >>> choose_engine("auto", Quadratic([[1.0]]))[1]
        'stacked: the quadratic task is a few vector operations'
    """
    given = {"workers": workers, "ray_address": ray_address}
    if name != "auto":
        if name not in ENGINES:
            raise InputError("engine", name, nearest(name, ["auto", *ENGINES]))
        return make(name, task, given), f"{name}: asked for"
    if ray_address:
        return make("ray", task, given), "ray: the address of a cluster was given"
    if isinstance(task, StackedTask) and (advice := task.stack_advice()).worthwhile:
        return make("stacked", task, given), f"stacked: {advice.why}"
    device = getattr(task, "device", None)
    if device is not None and device.type != "cpu":
        # Each process would have its own copy of the data there.
        return SerialEngine(task), f"serial: the work is on the device {device}"
    if workers == 1 or usable_cores() == 1:
        return SerialEngine(task), "serial: there is one core to use"
    seconds = seconds_a_round(task) * client_rounds
    if seconds < SHORT:
        return SerialEngine(task), f"serial: about {seconds:.2g} s of work, over in no time"
    try:
        pool = PoolEngine(task, workers=workers)
    except InputError as error:
        return SerialEngine(task), f"serial: {error.expected}"
    return pool, f"pool: {pool.workers} processes, since {why_pool(task)}"


def make(name: str, task: Task, given: dict[str, Any]) -> Engine:
    """An engine with those of the given options that it has; others must not be given."""
    known = options_of(ENGINES[name])
    for option, value in given.items():
        if value and option not in known:
            raise InputError(option, value, f"left out: the engine '{name}' has no such option")
    return ENGINES[name](task, **{k: v for k, v in given.items() if v})


def seconds_a_round(task: Task) -> float:
    """How long one client takes for the local steps of a round."""
    model = task.init()
    with one_thread():
        task.local_steps(0, model, 0, 0, None)
        began = time.perf_counter()
        task.local_steps(0, model, 0, 0, None)
    return time.perf_counter() - began


def why_pool(task: Task) -> str:
    """Why the work is not stacked."""
    if not isinstance(task, StackedTask):
        return "the task has no stacked local steps"
    return task.stack_advice().why
