"""The upper bound: the arithmetic of a round at the speed of plain matrix products.

The speed is measured on all cores at the same time, one process a core with one thread each, in
turn with the contestants, since a machine is not as fast at every moment.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor, nn

from benchmarks.machine import cores
from benchmarks.protocol import QuitError, say, wait
from benchmarks.work import Work, network

__all__ = ["flop_of_outputs", "flop_of_round", "flop_of_step"]

SIZES = (896, 1024, 1152)
PRODUCTS = 4
"""Of each size in one measurement: a quarter of a second or so."""


def flop_of_step(work: Work) -> int:
    """Floating-point operations of one local step, in convolutions and dense layers.

    A multiplication with an addition counts as two. Each layer computes its outputs, the gradient
    of its weights and, but for the first one, the gradient of its inputs, each the same product.
    """
    products = products_of_layers(work)
    return work.batch_size * 2 * (3 * sum(products) - products[0])


def flop_of_outputs(work: Work) -> int:
    """The same for the outputs of one sample."""
    return 2 * sum(products_of_layers(work))


def products_of_layers(work: Work) -> list[int]:
    """Multiplications of the outputs of each convolution and dense layer, for one sample."""
    products: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            products.append(outputs.numel() * layer.weight[0].numel())
        elif isinstance(layer, nn.Linear):
            products.append(outputs.numel() * layer.in_features)

    module = network(work)
    for layer in module.modules():
        layer.register_forward_hook(count)
    height, width, channels = work.shape
    with torch.no_grad():
        module(torch.zeros(1, channels, height, width))
    return products


def flop_of_round(work: Work) -> int:
    """The same for a round of all clients that train."""
    return work.steps * flop_of_step(work)


def measure(core: int, barrier: Barrier, orders: Connection) -> None:
    """In a process of its own: operations a second of one core, whenever asked."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    pairs = [(torch.rand(n, n), torch.rand(n, n)) for n in SIZES]
    while orders.recv():
        barrier.wait()
        rates = []
        for _ in range(PRODUCTS):
            for left, right in pairs:
                start_time = time.perf_counter()
                left @ right
                rates.append(2 * len(left) ** 3 / (time.perf_counter() - start_time))
        orders.send(statistics.median(rates))


def main() -> None:
    """Serve as contestants do; the answers hold the rate of all cores together."""
    # Spawned: a forked process would inherit PyTorch's threads in some state or other.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(cores()))
    pipes, processes = [], []
    for core in cores():
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(core, barrier, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)

    def rate() -> float:
        for pipe in pipes:
            pipe.send(True)
        return sum(float(pipe.recv()) for pipe in pipes)

    rate()
    say({"ready": True, "about": {"cores": len(pipes), "sizes": SIZES}, "round_seconds": 0.0})
    while True:
        try:
            rounds = wait()
        except QuitError:
            break
        start_time = time.perf_counter()
        rates = [rate() for _ in range(rounds)]
        seconds = time.perf_counter() - start_time
        rate_entry = {"flop_per_second": statistics.median(rates)}
        say({"seconds": seconds, "rounds": rounds, "steps": 0, **rate_entry})
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join()


if __name__ == "__main__":
    main()
