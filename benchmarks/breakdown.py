"""Where the time goes: in a local step, in a round of FedAvg on the pool, and in evaluations.

python -m benchmarks.breakdown step          # each operation while clients train, one core
python -m benchmarks.breakdown round         # a round on the pool, all cores; --algorithm fedpbc
python -m benchmarks.breakdown evaluation    # FedPBC on the pool with and without evaluations
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bound import flop_of_outputs, flop_of_round, flop_of_step
from benchmarks.machine import describe
from benchmarks.ours import make_task
from benchmarks.run import Interrupt
from benchmarks.tables import digits, duration, machine_line, markdown_table, percent
from benchmarks.work import ALGORITHMS, Prepared, Work, participation, prepare
from fedpbc import Simulation, Supervised
from fedpbc.engines import Engine, PoolEngine
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.views import VIEWS
from fedpbc.tasks.manual_backprop import ConvLayer, ConvReluPoolLayer, LinearLayer, manual_backprop
from fedpbc.tasks.module_vector import ModuleVector

EVALUATED, TESTED = 5_000, 10_000
"""Training and test samples of an evaluation of CIFAR-10, by default."""
PRODUCT = 1024
SHOWN = 2e-6
"""Seconds from which an operation has a line of its own."""


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of a call."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


class TimedLayer:
    """A layer of the hand-written step, and how long its passes take in a client's training."""

    def __init__(self, layer: Any, position: int) -> None:
        self.layer, self.name, self.flop = layer, described(layer, position), 0
        self.is_first = position == 0
        self.seconds: dict[str, list[float]] = {"forward": [], "backward": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    def forward(self, value: Tensor, in_place: bool) -> Any:
        """The layer's own, timed."""
        began = time.perf_counter()
        output, saved = self.layer.forward(value, in_place)
        self.seconds["forward"].append(time.perf_counter() - began)
        self.flop = products(self.layer, output)
        return output, saved

    def backward(self, *arguments: Any, need_input: bool) -> Any:
        """The layer's own, timed."""
        began = time.perf_counter()
        grad = self.layer.backward(*arguments, need_input)
        self.seconds["backward"].append(time.perf_counter() - began)
        return grad

    def rows(self) -> Iterator[tuple[str, int, float]]:
        """The name, the arithmetic and the time of each pass."""
        for kind, passes in (("forward", 1), ("backward", 1 if self.is_first else 2)):
            seconds = statistics.median(self.seconds[kind] or [0.0])
            yield f"{self.name}, {kind}", passes * self.flop, seconds


def step_table(data: Prepared) -> str:
    """Where the time of a local step goes while clients train one after another, on one core."""
    torch.set_num_threads(1)
    work, task = data.work, make_task(data)
    module = task.module.to(memory_format=torch.channels_last)
    step, vector = manual_backprop(module), ModuleVector(module)
    assert step is not None
    layers = [TimedLayer(layer, position) for position, layer in enumerate(step.layers)]
    step.layers = layers
    start, square = vector.flatten(), torch.rand(PRODUCT, PRODUCT)
    seconds: dict[str, list[float]] = {name: [] for name in ("model", "batch", "step", "product")}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[name].append(time.perf_counter() - began)
        return result

    with torch.no_grad():
        for client in range(work.clients):
            timed("model", partial(vector.fill, start))
            for k in range(work.local_steps):
                inputs, labels = timed("batch", partial(task.data.batch, client, k))
                timed("step", partial(step.sgd_step, inputs, labels, work.learning_rate))
            timed("model", vector.flatten)
            if client % 10 == 0:
                # In turn with the steps, since a machine is not as fast at every moment.
                timed("product", lambda: square @ square)
    speed = 2 * PRODUCT**3 / statistics.median(seconds["product"])
    rows = [row for layer in layers for row in layer.rows()]
    of_step = statistics.median(seconds["step"])
    rows.append(("softmax, memory, Python", 0, of_step - sum(each for _, _, each in rows)))
    rows.append(("the batch: drawn, gathered, augmented", 0, statistics.median(seconds["batch"])))
    model = 2 * statistics.median(seconds["model"]) / work.local_steps
    rows.append(("the client's model, in and out", 0, model))
    whole = sum(each for _, _, each in rows)
    rows.append(("a step, with all that belongs to it", flop_of_step(work), whole))
    lines = [
        [
            name,
            f"{operations / 1e6:.1f}" if operations else "",
            f"{each * 1e3:.3f}",
            percent(each / whole),
            percent(operations / each / speed) if operations else "",
            f"{(each - operations / speed) * 1e3:.3f}",
        ]
        for name, operations, each in rows
        if each >= SHOWN
    ]
    heads = ["operation", "MFLOP", "ms", "of the step", "of the bound", "ms above the bound"]
    note = f"One core; a large matrix product runs at {speed / 1e9:.0f} GFLOP/s."
    return f"{note} {machine_line(describe())}.\n\n{markdown_table(heads, lines)}"


def described(layer: Any, position: int) -> str:
    """A layer's name, and its place in the network."""
    kind = type(layer).__name__.removesuffix("Layer")
    size = "×".join(map(str, layer.weight.shape)) if hasattr(layer, "weight") else ""
    return f"{position + 1}. {kind} {size}".rstrip()


def products(layer: Any, output: Tensor) -> int:
    """Floating-point operations of one pass of a layer."""
    if isinstance(layer, ConvLayer):
        # A pooled output has a quarter of the numbers.
        computed = 4 * output.numel() if isinstance(layer, ConvReluPoolLayer) else output.numel()
        return 2 * computed * layer.weight[0].numel()
    return 2 * output.numel() * layer.weight.shape[1] if isinstance(layer, LinearLayer) else 0


def processor_seconds(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def round_table(data: Prepared, rounds: int) -> str:
    """What the workers and this process do in a round on the pool."""
    work, task, speed = data.work, make_task(data), core_speed()
    engine = PoolEngine(task)
    with closing(engine):
        steps = simulation_of(data, task, engine, rounds + 1, rounds + 1).steps()
        next(steps)  # which starts the processes
        pids = [os.getpid(), *engine.processes()]
        before = [processor_seconds(pid) for pid in pids]
        began = time.perf_counter()
        for _ in steps:
            continue
        wall = (time.perf_counter() - began) / rounds
        used = [(processor_seconds(p) - b) / rounds for p, b in zip(pids, before, strict=True)]
    bound = work.steps * flop_of_step(work) / speed / engine.workers
    rows = [("a round", wall), ("the bound", bound)]
    rows += [(f"worker {k + 1} at work", seconds) for k, seconds in enumerate(used[1:])]
    rows += [("this process at work", used[0])]
    rows += [("workers waiting, mean", wall - sum(used[1:]) / engine.workers)]
    lines = [[name, duration(seconds), percent(seconds / wall)] for name, seconds in rows]
    heads = [f"{work.algorithm}, {work.trained} clients train, pool"]
    heads += ["per round", "of the round"]
    return f"{machine_line(describe())}; {rounds} rounds.\n\n{markdown_table(heads, lines)}"


def core_speed() -> float:
    """Floating-point operations per second of a large matrix product on one core."""
    torch.set_num_threads(1)
    square = torch.rand(PRODUCT, PRODUCT)
    return 2 * PRODUCT**3 / median_seconds(lambda: square @ square, 20)


def simulation_of(
    data: Prepared, task: Supervised, engine: Engine, rounds: int, evaluate_every: int
) -> Simulation:
    """A simulation of the work, in the views that the package has by default."""
    return Simulation(
        task,
        make_algorithm(data.work.algorithm, task),
        engine,
        from_table(participation(data.work)[:rounds]),
        evaluate_every=evaluate_every,
    )


def evaluation_table(data: Prepared, rounds: int, repeats: int) -> str:
    """FedPBC on the pool with evaluations every ten rounds, and with none but the last."""
    seconds: dict[int, list[float]] = {10: [], rounds: []}
    task = make_task(data, evaluated=EVALUATED, tested=TESTED)
    engine = PoolEngine(task)
    with closing(engine):
        for repeat in range(repeats + 1):
            for every, times in seconds.items():
                began = time.perf_counter()
                for _ in simulation_of(data, task, engine, rounds, every).run():
                    continue
                if repeat:  # The first one starts the processes.
                    times.append(time.perf_counter() - began)
    evaluations = {every: rounds // every for every in seconds}
    lines = [
        [str(evaluations[every]), duration(statistics.median(times)), duration(min(times))]
        for every, times in seconds.items()
    ]
    ratios = [a / b for a, b in zip(seconds[10], seconds[rounds], strict=True)]
    heads = ["evaluations", f"{rounds} rounds, median", "least"]
    samples, speed = EVALUATED + TESTED, core_speed()
    one_view = median_seconds(partial(task.evaluate, task.init()), 5)
    flop = samples * flop_of_outputs(data.work)
    note = (
        f"{machine_line(describe())}. Ratio, median of {repeats} pairs: "
        f"{digits(statistics.median(ratios))}. Arithmetic of ten rounds: "
        f"{10 * flop_of_round(data.work) / 1e9:,.0f} GFLOP; of an evaluation: {samples:,} samples "
        f"in {len(VIEWS)} views, {len(VIEWS) * flop / 1e9:,.0f} GFLOP. One view takes "
        f"{duration(one_view)} of one core, {percent(flop / one_view / speed)} of the bound."
    )
    return f"{note}\n\n{markdown_table(heads, lines)}"


def main() -> None:
    """Measure one of the parts, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=("step", "round", "evaluation"))
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedavg", help="of the round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    keep_freed_memory()  # as the command does
    with Interrupt(), tempfile.TemporaryDirectory() as folder:
        if given.part == "step":
            prepare(Work.named("cifar10", "fedpbc"), Path(folder))
            print(step_table(Prepared.read(Path(folder))))
        elif given.part == "round":
            prepare(Work.named("cifar10", given.algorithm), Path(folder))
            print(round_table(Prepared.read(Path(folder)), given.rounds))
        else:
            prepare(Work.named("cifar10", "fedpbc"), Path(folder))
            print(evaluation_table(Prepared.read(Path(folder)), given.rounds, given.repeats))


if __name__ == "__main__":
    main()
