"""How long a round and an evaluation take, measured on a few rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from fedpbc.algorithms import Algorithm, find_algorithm
from fedpbc.experiments.advice.cost_preview import CostPreview
from fedpbc.experiments.advice.request import BASELINE, AdviceRequest
from fedpbc.experiments.advice.schedule import Speed
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["Stopwatch", "measure_speeds"]

PROBE_ROUNDS = 6
IDLE = 1.15
"""An idle machine lets a process wait a little, too: for the disk, say."""
MOST_SLOWDOWN = 10.0
ALWAYS = {"name": "always"}


class Stopwatch:
    """Tells how busy the machine is otherwise, from the time that this process was kept waiting.

    Rounds of milliseconds are seldom interrupted, so that their median does not show it.
    """

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def slowdown(self) -> float:
        """How many times as long as the processor worked everything took; 1 on an idle machine."""
        return waiting_factor(
            time.perf_counter() - self._wall, time.process_time() - self._processor
        )


def waiting_factor(wall: float, processor: float) -> float:
    """How many times as long it took as the processor worked; small differences do not count.

    Example:
        >>> waiting_factor(4.0, 2.0), waiting_factor(2.1, 2.0), waiting_factor(2.0, 3.5)
        (2.0, 1.0, 1.0)
    """
    factor = wall / max(processor, 1e-3)
    return min(factor, MOST_SLOWDOWN) if factor > IDLE else 1.0


def measure_speeds(
    request: AdviceRequest, costs: Mapping[str, CostPreview]
) -> tuple[dict[str, Speed], Speed]:
    """The speed of each algorithm, and with every link up.

    FedAvg is measured on these links, and with every link up. Of the others, those whose clients do
    more than local steps are measured, too: SCAFFOLD's take several times as long. The rest are as
    quick as FedAvg where they train as much; where every client trains, local steps decide.
    """
    usual = _measured(request)
    # Candidates are scored on the few samples that are held out.
    scoring = _measured(request, **_held_out(request)).evaluation
    ceiling = replace(_measured(request, links=ALWAYS, downlink=ALWAYS), scoring=scoring)
    full = request.config().train.local_steps * request.experiment().simulation.task.clients
    per_round = costs[BASELINE].local_steps / request.values["rounds"]
    # Seconds of a local step beyond FedAvg's, and what a round costs besides.
    slope = max(0.0, (ceiling.round - usual.round) / max(1.0, full - per_round))
    speeds = {}
    for name, cost in costs.items():
        steps = cost.local_steps / request.values["rounds"]
        rounds = usual.round + slope * max(0.0, steps - per_round)
        if find_algorithm(request.algorithm_of(name)).client_rule is not Algorithm.client_rule:
            table = {"name": request.algorithm_of(name), **request.options_of(name)}
            rounds = max(rounds, _measured(request, algorithm=table).round)
        # Vectors that are kept for the clients take time, too.
        views = 2 if find_algorithm(request.algorithm_of(name)).client_models else 1
        speeds[name] = Speed(1.2 * rounds, views * usual.evaluation, views * scoring)
    return speeds, ceiling


def _held_out(request: AdviceRequest) -> dict[str, Any]:
    """The settings of a candidate's task, as far as they change how long an evaluation takes."""
    if request.config().task.name == "quadratic":
        return {}
    plan = plan_tuning(request.values, TuningRequest(algorithms=[BASELINE], candidates=1))
    values = plan.config(plan.trials(BASELINE)[0], 0)
    return {key: values[key] for key in ("task", "data") if key in values}


def _measured(request: AdviceRequest, **settings: Any) -> Speed:
    """Seconds per round and per evaluation, of FedAvg by default, on the cores of this process."""
    experiment = request.with_rounds(PROBE_ROUNDS * 4).experiment(
        evaluate_every=PROBE_ROUNDS, views=list(DEPLOYABLE), engine="auto", seed=0, **settings
    )
    seconds: list[float] = []
    with closing(experiment.simulation) as simulation:
        began = time.perf_counter()
        for _ in simulation.steps():
            seconds.append(time.perf_counter() - began)
            if len(seconds) == PROBE_ROUNDS:
                break
            began = time.perf_counter()
    # The first round warms up, the last one is evaluated.
    plain = statistics.median(seconds[1:-1])
    return Speed(plain, max(0.0, seconds[-1] - plain))
