"""From a configuration to a simulation."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256

from fedpbc.data import DataSet, channel_statistics
from fedpbc.data import load as load_data
from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.simulation.build import draw_timetable, make_algorithm, make_simulation
from fedpbc.simulation.last_reports import LastReports
from fedpbc.simulation.loop import Simulation
from fedpbc.storage.arrays import read_array
from fedpbc.tasks import LocalTraining, Quadratic, Supervised, Task
from fedpbc.tasks.device import find_device
from fedpbc.tasks.networks import build_model

__all__ = ["build_simulation", "build_task", "data_fingerprint"]

DEFAULT_CLIENTS = 100


def build_simulation(config: Config, reports: LastReports | None = None) -> tuple[Simulation, str]:
    """A simulation at its beginning, and one line on its engine.

    ``reports`` is where clients' last reports are kept; None: in memory.

    Example:
        >>> config = Config.from_dict({"data": "digits", "clients": 10, "rounds": 3})
        >>> simulation, engine = build_simulation(config)
        >>> engine
        'stacked: a small dense model, 4,810 parameters'
    """
    general = config.general
    task = build_task(config)
    algorithm = make_algorithm(config.algorithm, task, config.train.global_learning_rate)
    return make_simulation(
        task,
        algorithm,
        draw_timetable(config.links, task, general.rounds, general.seed),
        config.downlink,
        seed=general.seed,
        evaluate_every=general.evaluate_every,
        views=general.views,
        reports=reports,
        engine=general.engine,
        workers=general.workers,
        ray_address=general.ray_address,
    )


def build_task(config: Config) -> Task:
    """What the configuration says is minimised."""
    general = config.general
    train = asdict(config.train)
    train.pop("global_learning_rate")
    training = LocalTraining(**train)
    # Before the data is read, which may take a while.
    device = find_device(general.device)
    if config.task.name == "quadratic":
        targets = read_array(str(config.task.targets), "task.targets")
        task = Quadratic(targets, training=training, seed=general.seed, device=device)
        if general.clients not in (None, task.clients):
            right = f"left out, or {task.clients}: that many targets there are"
            raise InputError("clients", general.clients, right)
        return task
    data = load_cached(config.data.name, config.data.dir)
    height, width, channels = data.train.inputs.shape[1:]
    shape = height, width, channels
    means, deviations = channel_statistics(data.train.inputs)
    return Supervised(
        build_model(config.model.name, shape, len(data.classes), general.seed),
        (data.train.inputs, data.train.labels),
        (data.test.inputs, data.test.labels),
        clients=DEFAULT_CLIENTS if general.clients is None else general.clients,
        alpha=config.data.alpha,
        training=training,
        seed=general.seed,
        crop_padding=data.crop_padding,
        flip=data.flip,
        normalise=(means.tolist(), deviations.tolist()),
        train_samples=config.data.train_samples,
        device=device,
    )


@lru_cache(maxsize=2)
def load_cached(name: str, folder: str | None) -> DataSet:
    """A data set, kept for the next run of the same process."""
    return load_data(name, folder)


def data_fingerprint(config: Config) -> str:
    """Tells whether a run's data is still what it was begun with."""
    if config.task.name == "quadratic":
        targets = read_array(str(config.task.targets), "task.targets")
        return sha256(targets.tobytes()).hexdigest()
    return load_cached(config.data.name, config.data.dir).fingerprint()
