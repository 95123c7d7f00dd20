"""Where the time goes: in a local step, in a round of FedAvg on the pool, and in evaluations.

python -m benchmarks.breakdown step          # each operation of a step, one core
python -m benchmarks.breakdown round         # ten clients of 100 on the pool, all cores
python -m benchmarks.breakdown evaluation    # FedPBC on the pool with and without evaluations
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bound import flop_of_step
from benchmarks.machine import describe
from benchmarks.ours import make_task
from benchmarks.run import Interrupt
from benchmarks.tables import digits, duration, machine_line, markdown_table, percent
from benchmarks.work import Prepared, Work, participation, prepare
from fedpbc import Simulation, Supervised
from fedpbc.engines import Engine, PoolEngine
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.tasks.manual_backprop import ConvLayer, GradientSink, LinearLayer, manual_backprop
from fedpbc.tasks.networks import build_model

REPEATS = 300
EVALUATED, TESTED = 5_000, 10_000
"""Training and test samples of an evaluation of CIFAR-10, by default."""
PRODUCT = 1024


def median_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of a call."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def step_table() -> str:
    """Each operation of a step of the paper's network for CIFAR-10, on one core."""
    keep_freed_memory()
    work = Work.named("cifar10", "fedpbc")
    module = build_model("cnn_cifar10", work.shape, 10, seed=0)
    step = manual_backprop(module.to(memory_format=torch.channels_last))
    assert step is not None
    inputs = torch.rand(work.batch_size, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.arange(work.batch_size) % 10
    speed = core_speed()
    with torch.no_grad():
        rows = list(operations(step.layers, inputs))
        whole = median_seconds(lambda: step.sgd_step(inputs, labels, 1e-6))
    flop, listed = flop_of_step(work), sum(seconds for _, _, seconds in rows)
    rows.append(("the rest: softmax, memory, Python", 0, whole - listed))
    rows.append(("the step", flop, whole))
    lines = [
        [
            name,
            f"{operations_ / 1e6:.1f}" if operations_ else "",
            f"{seconds * 1e3:.3f}",
            percent(seconds / whole),
            percent(operations_ / seconds / speed) if operations_ else "",
            f"{(seconds - operations_ / speed) * 1e3:.3f}",
        ]
        for name, operations_, seconds in rows
    ]
    heads = ["operation", "MFLOP", "ms", "of the step", "of the bound", "ms above the bound"]
    note = f"One core; a large matrix product runs at {speed / 1e9:.0f} GFLOP/s."
    return f"{note} {machine_line(describe())}.\n\n{markdown_table(heads, lines)}"


def operations(layers: Sequence[Any], inputs: Tensor) -> Iterator[tuple[str, int, float]]:
    """The name, the arithmetic and the time of each layer, forward and backward."""
    values, saved = [inputs], []
    for layer in layers:
        value, kept = layer.forward(values[-1].clone(memory_format=torch.preserve_format), True)
        values.append(value)
        saved.append(kept)
    for k, layer in enumerate(layers):
        copy = values[k].clone(memory_format=torch.preserve_format)
        seconds = median_seconds(partial(layer.forward, copy, k > 0))
        yield f"{described(layer, k)}, forward", products(layer, values[k + 1]), seconds
    grad = torch.full_like(values[-1], 1e-6)
    for k in range(len(layers) - 1, -1, -1):
        layer, passes = layers[k], 2 if k else 1
        backward = partial(layer.backward, grad, saved[k], GradientSink(collect=False), k > 0)
        seconds = median_seconds(backward)
        yield f"{described(layer, k)}, backward", passes * products(layer, values[k + 1]), seconds
        grad = layer.backward(grad, saved[k], GradientSink(collect=True), k > 0)


def described(layer: Any, position: int) -> str:
    """A layer's name, and its place in the network."""
    kind = type(layer).__name__.removesuffix("Layer")
    size = "×".join(map(str, layer.weight.shape)) if hasattr(layer, "weight") else ""
    return f"{position + 1}. {kind} {size}".rstrip()


def products(layer: Any, output: Tensor) -> int:
    """Floating-point operations of one pass of a layer."""
    if isinstance(layer, ConvLayer):
        return 2 * output.numel() * layer.weight[0].numel()
    return 2 * output.numel() * layer.weight.shape[1] if isinstance(layer, LinearLayer) else 0


def processor_seconds(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def round_table(data: Prepared, rounds: int) -> str:
    """What the workers and this process do in a round of FedAvg on the pool."""
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
    heads = ["FedAvg, ten clients, pool", "per round", "of the round"]
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
    note = (
        f"{machine_line(describe())}. Ratio, median of {repeats} pairs: "
        f"{digits(statistics.median(ratios))}. Arithmetic of ten rounds: "
        f"{10 * data.work.steps * flop_of_step(data.work) / 1e9:,.0f} GFLOP; an evaluation has "
        f"{EVALUATED + TESTED:,} samples in each of four views."
    )
    return f"{note}\n\n{markdown_table(heads, lines)}"


def main() -> None:
    """Measure one of the parts, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=("step", "round", "evaluation"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with Interrupt(), tempfile.TemporaryDirectory() as folder:
        if given.part == "step":
            print(step_table())
        elif given.part == "round":
            prepare(Work.named("cifar10", "fedavg"), Path(folder))
            print(round_table(Prepared.read(Path(folder)), given.rounds))
        else:
            prepare(Work.named("cifar10", "fedpbc"), Path(folder))
            print(evaluation_table(Prepared.read(Path(folder)), given.rounds, given.repeats))


if __name__ == "__main__":
    main()
