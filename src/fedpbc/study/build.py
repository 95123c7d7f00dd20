"""From a run to a simulation that is ready to start: task, links, algorithm, engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpbc import defaults
from fedpbc.aggregation import Aggregation
from fedpbc.choices import Choice
from fedpbc.data import DataSet, channel_statistics, find_source, first_clients, parts_of
from fedpbc.data import load as load_data
from fedpbc.engines import choose_engine
from fedpbc.errors import PLUGIN_MODULES, InputError
from fedpbc.links import Timetable
from fedpbc.links.trace import trace_notes
from fedpbc.simulation.build import draw_timetable, make_algorithm
from fedpbc.simulation.last_reports import choose_last_reports
from fedpbc.simulation.loop import Simulation
from fedpbc.storage.arrays import read_array
from fedpbc.storage.tensors import checksum
from fedpbc.study.registries import PROBABILITIES, engines
from fedpbc.study.spec import Spec, Train, content_of
from fedpbc.study.study import NOT_OF_THE_PROBLEM, Run
from fedpbc.tasks import LocalTraining, Quadratic, Supervised, Task
from fedpbc.tasks.losses import find_loss
from fedpbc.tasks.networks import build_model
from fedpbc.tasks.torch_device import find_device
from fedpbc.theory.run_bound import RunBound

__all__ = ["Built", "build", "build_task", "check", "local_training", "task_values"]


@dataclass(frozen=True, eq=False)
class Built:
    """A run before its first round.

    Attributes:
        engine: one line on the engine and why it was chosen.
        fingerprint: changes with the data and the links, which a spec only names.
        notes: what a user must know of the task and the links, one line each.
    """

    simulation: Simulation
    engine: str
    fingerprint: str
    notes: tuple[str, ...] = ()


def build(run: Run, *, task: Task | None = None, reports: Path | None = None) -> Built:
    """Build what a run describes; raises InputError for what only shows now.

    ``task`` is that of a task made in Python. ``reports`` is the file of the clients' last reports,
    if those are kept on disk; None: a temporary file.

    Example:
        >>> built = build(Run.of({"data": "digits", "clients": 5, "rounds": 2}))
        >>> built.simulation.rounds, built.simulation.task.clients
        (2, 5)
    """
    spec, execution = run.spec, run.execution
    last_reports = choose_last_reports(execution.reported, reports)
    if spec.task.name == "python" and task is None:
        raise InputError("the task was made in Python: call simulate() or compare() there again")
    task = build_task(spec, execution.device) if task is None else task
    uplink = _links("links", spec.links, run, task, spec.rounds)
    if spec.rounds != uplink.rounds:
        raise InputError(
            f"rounds is {spec.rounds}, but the links are a table of {uplink.rounds} rounds: "
            "leave it out"
        )
    algorithm = make_algorithm(
        spec.algorithm.table(),
        task,
        spec.train.global_learning_rate,
        Aggregation(**spec.aggregation.table()),
    )
    downlink = None  # Where every downlink is always up, no client's model has to be stored.
    if spec.downlink.name != "always":
        downlink = _links("downlink", spec.downlink, run, task, uplink.rounds)
    trainers = task.clients if algorithm.everyone_trains else uplink.shares().sum()
    engine, line = choose_engine(
        execution.engine.name,
        task,
        workers=execution.engine.get("workers", 0),
        ray_address=execution.engine.get("address", ""),
        client_rounds=int(trainers * uplink.rounds),
    )
    simulation = Simulation(
        task,
        algorithm,
        engine,
        uplink,
        downlink,
        evaluate_every=spec.evaluate_every,
        evaluate_every_at_end=spec.evaluate_every_at_end,
        views=spec.views,
        last_reports=last_reports,
        observers=[RunBound(task, algorithm, uplink, downlink)],
    )
    notes: list[str] = []
    if getattr(task, "test_is_held_out", False):
        from fedpbc.experiments.user_app import HELD_OUT

        notes.append(HELD_OUT)
    for section, scheme in (("links", spec.links), ("downlink", spec.downlink)):
        if scheme.name == "trace":
            notes += trace_notes(scheme.options, uplink.rounds, section)
    links = [timetable.fingerprint() for timetable in (uplink, downlink) if timetable is not None]
    content = json.dumps([_data_fingerprint(spec, task), *links])
    return Built(simulation, line, sha256(content.encode()).hexdigest(), tuple(notes))


def check(runs: Iterable[Run]) -> list[str]:
    """Build one run of each set-up of data, links and model: it shows what is wrong there.

    Returns what a user must know of the tasks. Nothing is trained or written.
    """
    setups: dict[str, Run] = {}
    for run in runs:
        values = run.spec.dump()
        for key in NOT_OF_THE_PROBLEM:
            values.pop(key, None)
        setups.setdefault(json.dumps(values, sort_keys=True), run)
    notes: dict[str, None] = {}
    serial = engines.parse("serial")
    for run in setups.values():
        execution = run.execution.model_copy(update={"engine": serial, "reported": "memory"})
        built = build(replace(run, execution=execution))
        built.simulation.close()
        notes |= dict.fromkeys(built.notes)
    return list(notes)


def _links(section: str, choice: Choice, run: Run, task: Task, rounds: int) -> Timetable:
    """The timetable of a section; probabilities that a scheme does not ask for are refused."""
    if section in run.objects:
        given = run.objects[section]
        return draw_timetable(given, task, rounds, run.seed, option=section)
    timetable = draw_timetable(choice.table(), task, rounds, run.seed, option=section)
    for name in PROBABILITIES if timetable.base_probabilities is None else ():
        if choice.get(name) is not None:
            raise InputError(
                f"{section}.{name} is {choice[name]!r}, but {section} '{choice.name}' does not use "
                f"it: choose a scheme with --{section} bernoulli"
            )
    return timetable


# ------------------------------------------------------------------------------------------- tasks


def local_training(train: Train) -> LocalTraining:
    """The local steps of a section ``[train]``.

    Example:
        >>> from fedpbc.study.spec import validated
        >>> local_training(validated(Train, {"optimizer": "sgd:momentum=0.9"})).momentum
        0.9
    """
    return LocalTraining(
        local_steps=train.local_steps,
        batch_size=train.batch_size or LocalTraining.batch_size,
        learning_rate=train.learning_rate,
        proximal=train.proximal,
        optimizer=train.optimizer.table(),
        schedule=train.schedule.table(),
    )


def task_values(task: Task) -> dict[str, Any]:
    """What the values of a run say of a task that was made in Python.

    Example:
        >>> values = task_values(Quadratic([[0.0], [9.0]]))
        >>> values["task"]["name"], values["clients"], values["train"]["local_steps"]
        ('python', 2, 5)
    """
    training = task.training
    train = {
        name: getattr(training, name)
        for name in ("local_steps", "batch_size", "learning_rate", "proximal")
    }
    fingerprint: Callable[[], str] = getattr(task, "fingerprint", lambda: "")
    return {
        "task": {
            "name": "python",
            "fingerprint": checksum({"x0": task.init()}) + str(fingerprint()),
        },
        "clients": task.clients,
        "train": {
            **train,
            "optimizer": _optimizer_table(training),
            "schedule": _schedule_table(training),
        },
    }


def _optimizer_table(training: LocalTraining) -> dict[str, Any]:
    name = training.described()["optimizer"]
    options = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    # AdamW's has another default by its name.
    kept = {k: v for k, v in options.items() if v or (name, k) == ("adamw", "weight_decay")}
    return {"name": name, **kept}


def _schedule_table(training: LocalTraining) -> dict[str, Any]:
    name = training.described()["schedule"]
    if name is None:
        return {"name": "inverse_sqrt" if training.decay else "constant"}
    return {"name": name, "rounds": training.schedule_rounds}


def build_task(spec: Spec, device: str = "cpu") -> Task:
    """The task that a spec describes."""
    training = local_training(spec.train)
    # Before the data is read, which may take a while.
    place = find_device(device)
    if spec.task.name == "quadratic":
        targets = read_array(spec.task["targets"], "task.targets")
        return Quadratic(targets, training=training, seed=spec.seed, device=place)
    if spec.task.name == "app":
        from fedpbc.experiments.user_app import load_user_app

        assert spec.clients is not None
        app = load_user_app(
            Path(spec.task["app"]), spec.task["running_statistics"], spec.task.get("loss")
        )
        return app.simulated_task(
            clients=spec.clients,
            seed=spec.seed,
            training=training,
            device=str(place),
            validation=spec.task.get("validation", 0.0),
        )
    return _of_data(spec, load_cached(spec), training, place)


def _of_data(
    spec: Spec, data: DataSet, training: LocalTraining, device: torch.device
) -> Supervised:
    """The task of a data set: pictures, texts or numbers, partitioned or of clients themselves."""
    assert spec.data is not None
    assert spec.model is not None
    options, clients = spec.data, spec.clients
    arguments: dict[str, Any] = {}
    has_clients = bool(data.client_names) or data.generator is not None
    unread = "alpha" if has_clients else "weigh"
    if unread in options.options:
        why = "has clients of its own" if has_clients else "has samples that are no client's"
        raise InputError(f"data.{unread}", options[unread], f"left out: {data.name} {why}")
    if has_clients:
        arguments["weigh"] = options.get("weigh", "volume")
    if data.client_names:
        data = first_clients(data, len(data.client_names) if clients is None else clients)
        assert data.train.clients is not None
        arguments["partition"] = parts_of(data.train.clients, len(data.client_names))
        arguments["test_clients"] = data.test.clients
    inputs, labels = data.train.inputs, data.train.labels
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        means, deviations = channel_statistics(inputs)
        arguments["normalise"] = means.tolist(), deviations.tolist()
    module = build_model(
        spec.model.name,
        inputs.shape[1:],
        len(data.classes) or math.prod(labels.shape[1:]),
        spec.seed,
        vocabulary=data.vocabulary,
        every_position=bool(data.classes) and labels.ndim == 2,
        **spec.model.options,
    )
    samples: tuple[Any, Any] = (inputs, labels), (data.test.inputs, data.test.labels)
    if data.generator is not None:
        samples = data.generator, None
    return Supervised(
        module,
        *samples,
        clients=clients,
        # Labels that are no classes are not split by α.
        alpha=None if options.get("alpha") == defaults.ALPHA else options.get("alpha"),
        training=training,
        seed=spec.seed,
        crop_padding=data.crop_padding,
        flip=data.flip,
        train_samples=options["train_samples"],
        validation=spec.task.get("validation", 0.0),
        device=device,
        running_statistics=spec.task["running_statistics"],
        loss=spec.task.get("loss") or ("cross_entropy" if data.classes else "squared"),
        perplexity=data.next_token,
        **arguments,
    )


def load_cached(spec: Spec) -> DataSet:
    """Load a run's data set, or take that of an earlier run in this process."""
    assert spec.data is not None
    shared = ("dir", "alpha", "train_samples", "weigh")
    options = {k: v for k, v in spec.data.options.items() if k not in shared}
    loss = spec.task.get("loss")
    takes_numbers = loss is not None and find_loss(loss).labels in ("numbers", "flags")
    if options.get("target_kind") == "auto" and takes_numbers:
        options["target_kind"] = "numbers"
    function = find_source(spec.data.name).function
    # A plugin's module is named by its content, and imported anew where it has changed.
    module = "" if function is None else function.__module__
    version = module if module.startswith(PLUGIN_MODULES) else function
    text = json.dumps(options, sort_keys=True)
    return _loaded(spec.data.name, spec.data.get("dir"), text, version)


@lru_cache(maxsize=2)
def _loaded(name: str, folder: str | None, options: str, version: object) -> DataSet:
    return load_data(name, folder, **json.loads(options))


def _data_fingerprint(spec: Spec, task: Task) -> str:
    """Changes with the data; of a task made in Python, with what can be known of it."""
    if spec.task.name == "classification":
        return load_cached(spec).fingerprint()
    if spec.task.name == "quadratic":
        return content_of(spec.task["targets"])
    fingerprint: Callable[[], str] = getattr(task, "fingerprint", lambda: "")
    return checksum({"x0": task.init()}) + str(fingerprint())
