"""The package itself, with one of its engines."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.protocol import refuse, serve
from benchmarks.work import CLASSES, PACKAGED, Prepared, participation
from fedpbc import InputError, LocalTraining, MissingExtraError, Simulation, Supervised
from fedpbc.engines import Engine, Segment, Trained, choose_engine
from fedpbc.engines.malloc import keep_freed_memory
from fedpbc.links import from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.tasks.networks import build_model

__all__ = ["make_task"]

EVALUATED_SAMPLES = 10
"""Samples in an evaluation: there is one at the end of a block, and it should cost nothing."""


class Counted:
    """An engine that counts the rounds of training which it hands over."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.client_rounds = engine, engine.name, 0

    def submit(self, segment: Segment) -> None:
        """Take on a segment."""
        self.engine.submit(segment)

    def result(self, client: int) -> Trained:
        """Hand over a finished one."""
        trained = self.engine.result(client)
        self.client_rounds += trained.segment.rounds
        return trained

    def close(self) -> None:
        """End the engine."""
        self.engine.close()


def make_task(
    data: Prepared, *, evaluated: int = EVALUATED_SAMPLES, tested: int = CLASSES
) -> Supervised:
    """The work as a task of the package, with so many samples in an evaluation."""
    work = data.work
    pictures = data.pictures.numpy()
    module: nn.Sequential
    if work.name == "dense":
        height, width, channels = work.shape
        module = nn.Sequential(
            nn.Flatten(),
            nn.Linear(height * width * channels, work.hidden),
            nn.ReLU(),
            nn.Linear(work.hidden, CLASSES),
        )
    else:
        module = build_model(PACKAGED[work.name], work.shape, CLASSES, seed=0)
    return Supervised(
        module,
        (pictures, data.labels),
        (pictures[:tested], np.arange(tested) % CLASSES),
        partition=np.arange(len(pictures)).reshape(work.clients, work.samples),
        training=LocalTraining(
            local_steps=work.local_steps,
            batch_size=work.batch_size,
            learning_rate=work.learning_rate,
            decay=False,
        ),
        crop_padding=4 if work.augment else 0,
        flip=work.augment,
        normalise=(data.means, data.deviations),
        train_samples=evaluated,
    )


class Ours:
    """Blocks of rounds, each a simulation from the beginning, all on one engine."""

    def __init__(self, data: Prepared, engine: str, workers: int) -> None:
        self.work, self.participation, self.round = data.work, participation(data.work), 0
        self.task = make_task(data)
        self.engine = Counted(choose_engine(engine, self.task, workers=workers)[0])

    def run(self, rounds: int) -> int:
        """So many rounds; returns the number of local steps."""
        rows = (self.round + np.arange(rounds)) % len(self.participation)
        self.round += rounds
        self.engine.client_rounds = 0
        # Judging the mean of all clients at the end makes every client train in every round:
        # lazy as FedPBC is otherwise, it would leave out who does not get through any more.
        view = "mean" if self.work.algorithm == "fedpbc" else "server"
        simulation = Simulation(
            self.task,
            make_algorithm(self.work.algorithm, self.task),
            self.engine,
            from_table(self.participation[rows]),
            evaluate_every=rounds,
            views=[view],
        )
        for _ in simulation.run():
            continue
        return self.engine.client_rounds * self.work.local_steps


def main() -> None:
    """Take the folder of the work and the engine from the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--workers", type=int, default=0, help="0: one per core")
    options = parser.parse_args()
    # As in every process that the package's command line starts.
    keep_freed_memory()
    data = Prepared.read(options.folder)
    try:
        ours = Ours(data, options.engine, options.workers)
    except (InputError, MissingExtraError) as error:
        refuse(str(error))
        return
    about = {"engine": options.engine, "workers": options.workers, "torch": torch.__version__}
    try:
        serve(ours.run, about, warm_up=1 if data.work.algorithm == "fedpbc" else 2)
    finally:
        ours.engine.close()


if __name__ == "__main__":
    main()
