"""From a configuration to an experiment that is ready to run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpbc.data import DataSet, channel_statistics, find_source, first_clients, parts_of
from fedpbc.data import load as load_data
from fedpbc.engines import choose_engine
from fedpbc.errors import PLUGIN_MODULES, InputError
from fedpbc.experiments.configuration import Config, identity
from fedpbc.experiments.settings import DataSection
from fedpbc.experiments.unused_settings import check_probabilities_are_read
from fedpbc.experiments.user_app import HELD_OUT, load_user_app
from fedpbc.links.trace import trace_notes
from fedpbc.simulation.build import draw_timetable, make_algorithm
from fedpbc.simulation.last_reports import choose_last_reports
from fedpbc.simulation.loop import Simulation
from fedpbc.storage.arrays import read_array
from fedpbc.storage.files import expanded
from fedpbc.storage.tensors import checksum
from fedpbc.tasks import LocalTraining, Quadratic, Supervised, Task
from fedpbc.tasks.losses import find_loss
from fedpbc.tasks.networks import build_model
from fedpbc.tasks.torch_device import find_device
from fedpbc.theory.run_bound import RunBound

__all__ = ["Experiment", "build_experiment", "build_task"]


@lru_cache(maxsize=2)
def _loaded(name: str, folder: str | None, options: str, version: object) -> DataSet:
    return load_data(name, folder, **json.loads(options))


def load_cached(config: Config) -> DataSet:
    """Load a configuration's data set, or take that of an earlier run in this process."""
    options = dict(config.data_options)
    if options.get("target_kind") == "auto" and _needs_numbers(config):
        options["target_kind"] = "numbers"
    function = find_source(config.data.name).function
    # A plugin's module is named by its content, and imported anew for every run.
    module = "" if function is None else function.__module__
    version = module if module.startswith(PLUGIN_MODULES) else function
    return _loaded(config.data.name, config.data.dir, json.dumps(options, sort_keys=True), version)


def _needs_numbers(config: Config) -> bool:
    """Whether the loss takes integers as numbers, not as classes."""
    loss = config.task.loss
    return loss is not None and find_loss(loss).labels in ("numbers", "flags")


@dataclass(frozen=True, eq=False)
class Experiment:
    """A configuration, and the simulation that it describes, before round 0.

    Attributes:
        config: with the number of clients and rounds.
        engine: one line on the engine and why it was chosen.
        notes: what a user must know of the task and the links, one line each.
    """

    config: Config
    simulation: Simulation
    engine: str
    notes: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """What identifies the run; a checkpoint of another run is refused.

        The fingerprint changes with the data, the links and every option that matters.
        """
        config = self.config
        timetables = (self.simulation.uplink, self.simulation.downlink)
        links = [timetable.fingerprint() for timetable in timetables if timetable is not None]
        content = json.dumps(
            [self.data_fingerprint(), links, identity(config.to_dict())], sort_keys=True
        )
        kind = config.task.name
        return {
            "algorithm": config.algorithm["name"],
            "links": config.links["name"],
            "data": config.data.name if kind == "classification" else kind,
            "seed": config.general.seed,
            "fingerprint": sha256(content.encode()).hexdigest(),
        }

    def data_fingerprint(self) -> str:
        """Changes with the data; for a task built in Python, with what can be known of it."""
        config = self.config
        if config.task.name in ("app", "python"):
            task = self.simulation.task
            fingerprint = getattr(task, "fingerprint", lambda: "")
            source = ""
            if config.task.app is not None:
                # The loss and the test data are the code's.
                source = sha256(expanded(config.task.app, "task.app").read_bytes()).hexdigest()
            return checksum({"x0": task.init()}) + str(fingerprint()) + source
        if config.task.name == "quadratic":
            targets = read_array(str(config.task.targets), "task.targets")
            return sha256(targets.tobytes()).hexdigest()
        return load_cached(config).fingerprint()


def build_experiment(config: Config, last_reports_path: Path | None = None) -> Experiment:
    """Build everything that a configuration describes; wrong values raise InputError.

    ``last_reports_path`` is the file of the clients' last reports, if those are kept on disk; None:
    a temporary file.
    """
    general, objects = config.general, config.objects
    last_reports = choose_last_reports(general.reported, last_reports_path)
    task: Task = objects["task"] if "task" in objects else build_task(config)
    uplink = draw_timetable(objects.get("links", config.links), task, general.rounds, general.seed)
    check_probabilities_are_read(config, "links", uplink)
    if "rounds" in config.given and general.rounds != uplink.rounds:
        raise InputError(
            f"rounds is {general.rounds}, but the links are a table of {uplink.rounds} rounds: "
            "leave it out"
        )
    algorithm = make_algorithm(
        objects.get("algorithm", config.algorithm),
        task,
        config.train.global_learning_rate,
        config.aggregation,
    )
    downlink = None  # Where every downlink is always up, no client's model has to be stored.
    if config.downlink["name"] != "always":
        section = objects.get("downlink", config.downlink)
        downlink = draw_timetable(section, task, uplink.rounds, general.seed, option="downlink")
        check_probabilities_are_read(config, "downlink", downlink)
    trainers = task.clients if algorithm.everyone_trains else uplink.shares().sum()
    engine, line = choose_engine(
        general.engine,
        task,
        workers=general.workers,
        ray_address=general.ray_address,
        client_rounds=int(trainers * uplink.rounds),
    )
    simulation = Simulation(
        task,
        algorithm,
        engine,
        uplink,
        downlink,
        evaluate_every=general.evaluate_every,
        evaluate_every_at_end=general.evaluate_every_at_end,
        views=general.views,
        last_reports=last_reports,
        observers=[RunBound(task, algorithm, uplink, downlink)],
    )
    general = replace(general, clients=task.clients, rounds=uplink.rounds)
    notes = [HELD_OUT] if getattr(task, "test_is_held_out", False) else []
    for section, links in (("links", config.links), ("downlink", config.downlink)):
        if links["name"] == "trace":
            notes += trace_notes(links, uplink.rounds, section)
    return Experiment(replace(config, general=general), simulation, line, tuple(notes))


def build_task(config: Config) -> Task:
    """The task that the configuration describes."""
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
            raise InputError(
                "clients", general.clients, f"left out, or {task.clients} as there are targets"
            )
        return task
    if config.task.name == "app":
        assert config.task.app is not None
        assert general.clients is not None
        app = load_user_app(
            expanded(config.task.app, "task.app"), config.task.running_statistics, config.task.loss
        )
        return app.simulated_task(
            clients=general.clients,
            seed=general.seed,
            training=training,
            device=str(device),
            validation=config.task.validation or 0.0,
        )
    return data_set_task(config, load_cached(config), training, device)


def data_set_task(
    config: Config, data: DataSet, training: LocalTraining, device: torch.device
) -> Supervised:
    """The task of a data set: pictures, texts or numbers, partitioned or of clients themselves."""
    general, clients = config.general, config.general.clients
    task_arguments: dict[str, Any] = {}
    has_clients = bool(data.client_names) or data.generator is not None
    alpha_given = "data.alpha" in config.given and not config.lenient
    if has_clients and (alpha_given or config.data.alpha != DataSection.alpha):
        raise InputError(
            "data.alpha", config.data.alpha, f"left out: {data.name} has clients of its own"
        )
    if data.client_names:
        data = first_clients(data, len(data.client_names) if clients is None else clients)
        assert data.train.clients is not None
        task_arguments["partition"] = parts_of(data.train.clients, len(data.client_names))
        task_arguments["test_clients"] = data.test.clients
        task_arguments["weigh"] = config.data.weigh
    elif data.generator is not None:
        task_arguments["weigh"] = config.data.weigh
    elif config.data.weigh != DataSection.weigh:
        raise InputError(
            "data.weigh", config.data.weigh, f"left out: the samples of {data.name} are no client's"
        )
    inputs, labels = data.train.inputs, data.train.labels
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        means, deviations = channel_statistics(inputs)
        task_arguments["normalise"] = means.tolist(), deviations.tolist()
    module = build_model(
        config.model.name,
        inputs.shape[1:],
        len(data.classes) or math.prod(labels.shape[1:]),
        general.seed,
        vocabulary=data.vocabulary,
        every_position=bool(data.classes) and labels.ndim == 2,
        **config.model_options,
    )
    samples: tuple[Any, Any] = (inputs, labels), (data.test.inputs, data.test.labels)
    if data.generator is not None:
        samples = data.generator, None
    return Supervised(
        module,
        *samples,
        clients=clients,
        # Labels that are no classes are not split by α.
        alpha=None if config.data.alpha == DataSection.alpha else config.data.alpha,
        training=training,
        seed=general.seed,
        crop_padding=data.crop_padding,
        flip=data.flip,
        train_samples=config.data.train_samples,
        validation=config.task.validation or 0.0,
        device=device,
        running_statistics=config.task.running_statistics,
        loss=config.task.loss or ("cross_entropy" if data.classes else "squared"),
        perplexity=data.next_token,
        **task_arguments,
    )
