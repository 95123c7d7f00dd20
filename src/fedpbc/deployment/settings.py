"""A fleet's configuration: that of a run, and a section ``[fleet]``.

Only the server is configured. How to train is sent with every message, as JSON; a trainer adds what
only the device knows: where its data is, and on what it trains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedpbc.algorithms import Algorithm, ClientRule, ServerInit, find_algorithm
from fedpbc.data import find_source
from fedpbc.deployment.address import parse_address
from fedpbc.deployment.protocol.messages import MessageError, sanitized
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_task
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.settings import without_later
from fedpbc.experiments.user_app import UserApp, load_user_app
from fedpbc.limits import parse_json
from fedpbc.options import checked
from fedpbc.simulation.loop import check_training
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.simulation.norm_bound import NORM_FACTOR
from fedpbc.tasks import LocalTraining, Task
from fedpbc.tasks.model_registry import find_model
from fedpbc.tasks.module_vector import ModuleVector
from fedpbc.tasks.parameter_layout import Layout, RunningStatistics

__all__ = [
    "FleetSection",
    "FleetSettings",
    "fleet_options",
    "read_fleet",
    "rule_of_client",
    "task_of_client",
]

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class FleetSection:
    """The section ``[fleet]``.

    Attributes:
        round_seconds: the deadline of a round; it ends earlier if all clients have replied.
        wait_for: how many clients must be connected before the first round begins.
        app: a Python file with the user's model and data.
        views_every: rounds between writing the views' models; the last round always writes them.
        norm_factor: an answer is refused if its norm is so many times the median of the others'
            last ones; 0 disables it.
        norm_bound: likewise for the norm itself, per round of local work; 0 disables it.
        metrics_port: where this machine gets the status for Prometheus; 0: nowhere.
        listen: where devices connect, ``host:port``; 0.0.0.0 is all addresses of the machine.
    """

    round_seconds: Annotated[float, Gt(0)] = 60.0
    wait_for: Annotated[int, Ge(0)] = 1
    app: str | None = None
    views_every: Annotated[int, Ge(1)] = 10
    norm_factor: Annotated[float, Ge(0)] = NORM_FACTOR
    norm_bound: Annotated[float, Ge(0)] = 0.0
    metrics_port: Annotated[int, Ge(0), Le(65535)] = 0
    listen: str = "0.0.0.0:8443"


@dataclass(frozen=True)
class FleetSettings:
    """A fleet's complete, checked configuration."""

    config: Config
    fleet: FleetSection

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> FleetSettings:
        """Check all options and fill in the defaults."""
        rest = dict(options)
        section = rest.pop("fleet", {})
        if not isinstance(section, Mapping):
            raise InputError("fleet", section, "a table [fleet]")
        fleet = FleetSection(**checked(FleetSection, section, "fleet"))
        parse_address(fleet.listen, "fleet.listen")
        config = Config.from_dict(rest)
        clients = config.general.clients
        if clients is None:
            raise InputError("clients is missing: how many devices does the fleet have?")
        if fleet.wait_for > clients:
            raise InputError("fleet.wait_for", fleet.wait_for, f"at most the {clients} clients")
        if config.task.name != "classification":
            expected = "'classification': quadratics are for simulations"
            raise InputError("task", config.task.name, expected)
        if find_algorithm(config.algorithm["name"]).needs_probabilities:
            expected = "one that needs no link probabilities: no server knows them"
            raise InputError("algorithm", config.algorithm["name"], expected)
        settings = cls(config, fleet)
        check_training(settings.algorithm(torch.zeros(1)), settings.training)
        return settings

    @property
    def clients(self) -> int:
        """The number of clients, m."""
        assert self.config.general.clients is not None
        return self.config.general.clients

    def with_clients(self, clients: int) -> FleetSettings:
        """The same with another number of clients: some may have joined."""
        general = replace(self.config.general, clients=clients)
        return replace(self, config=replace(self.config, general=general))

    @property
    def clients_can_join(self) -> bool:
        """Whether more clients can join while a job runs.

        A built-in data set is divided among the clients of the start.
        """
        rule = self.algorithm(torch.zeros(1)).client_rule()
        return self.fleet.app is not None and not (rule is not None and rule.keeps)

    @property
    def training(self) -> LocalTraining:
        """The clients' local training."""
        return LocalTraining(**_training(self.config))

    def client_settings(self) -> str:
        """How to train, as it is sent to the trainers."""
        config = self.config
        settings: dict[str, Any] = {
            "seed": config.general.seed,
            "clients": self.clients,
            "train": _training(config),
        }
        if self.fleet.app is None:
            # Options only where there are some: the settings of older jobs stay what they were.
            data = {"name": config.data.name, "alpha": config.data.alpha}
            settings["data"] = {**data, **config.data_options}
            settings["model"] = {"name": config.model.name, **config.model_options}
        # Only where devices need it: the settings of older jobs stay what they were.
        task = {"running_statistics": self._statistics, "loss": config.task.loss}
        if task := {k: v for k, v in without_later("task", task).items() if v is not None}:
            settings["task"] = task
        if self.algorithm(torch.zeros(1)).client_rule() is not None:
            options = dict(config.algorithm)
            settings["algorithm"] = {
                "name": options.pop("name"),
                "options": options,
                "global_learning_rate": config.train.global_learning_rate,
            }
        return json.dumps(settings, sort_keys=True)

    def first_model(self) -> tuple[Tensor, Layout]:
        """The initial model x⁰ with all its parts, and its layout."""
        if self.fleet.app is None:
            task = build_task(self.config)
            return task.init(), task.layout
        module = self.app(self.fleet.app).module(self.config.general.seed)
        vector = ModuleVector(module, self._statistics)
        return vector.flatten(), vector.layout

    @property
    def _statistics(self) -> RunningStatistics:
        return self.config.task.running_statistics

    def app(self, path: str) -> UserApp:
        """The user's app, with the settings of this fleet."""
        return load_user_app(Path(path), self._statistics, self.config.task.loss)

    def algorithm(self, x0: Tensor) -> Algorithm:
        """The server's rule."""
        options = dict(self.config.algorithm)
        kind = find_algorithm(options.pop("name"))
        rate, aggregation = self.config.train.global_learning_rate, self.config.aggregation
        return kind(ServerInit(x0, self.clients, rate, aggregation), **options)

    def whole_task(self) -> Task:
        """The task with all clients' data, to simulate the same fleet."""
        if self.fleet.app is None:
            return build_task(self.config)
        app, seed = self.app(self.fleet.app), self.config.general.seed
        return app.whole_task(clients=self.clients, seed=seed, training=self.training)


def read_fleet(path: Path) -> FleetSettings:
    """Read and check a TOML file; imports its plugins, and not its app."""
    return FleetSettings.from_dict(fleet_options(path))


def fleet_options(path: Path) -> dict[str, Any]:
    """Read a TOML file; it names files relative to itself, or to the current directory."""
    options = read_toml(path)
    fleet = options.get("fleet")
    if isinstance(fleet, dict) and isinstance(fleet.get("app"), str):
        beside = path.parent / fleet["app"]
        fleet["app"] = str((beside if beside.exists() else Path(fleet["app"])).resolve())
    return options


def task_of_client(
    settings: str,
    client: int,
    *,
    app: UserApp | None = None,
    data_dir: str | None = None,
    device: str,
) -> Task:
    """Build a trainer's task from the server's settings and what only the device knows.

    Only the numbers and names of :meth:`FleetSettings.client_settings` are used, and all are
    checked: a server cannot name files of the device.
    """
    try:
        received = parse_json(settings)
        options = {name: received[name] for name in ("seed", "clients", "train")}
        if app is None:
            data, model = received["data"], received["model"]
            # Where files are is the device's own affair.
            options["data"] = {k: data[k] for k in data if k not in ("dir", "train_samples")}
            options["data"] |= {"name": data["name"], "alpha": data["alpha"]}
            options["model"] = {**model, "name": model["name"]}
        if "task" in received:
            task = received["task"]
            options["task"] = {k: task[k] for k in ("running_statistics", "loss") if k in task}
    except (ValueError, KeyError, TypeError) as error:
        problem = "use a model and data of the user" if app is None else "are unreadable"
        raise MessageError(
            f"the server's settings {problem}: start the trainer with --app"
        ) from error
    if app is None:
        if not all(isinstance(options[name]["name"], str) for name in ("data", "model")):
            raise MessageError("the server's settings name no data and model")
        _known_here("data set", find_source, options["data"]["name"])
        _known_here("model", find_model, options["model"]["name"])
        if data_dir is not None:
            options["data"]["dir"] = data_dir
    config = Config.from_dict({**options, "device": device})
    clients = config.general.clients
    if clients is None:
        raise MessageError("the server's settings do not say how many clients there are")
    if not 0 <= client < clients:
        raise InputError("client", client, f"from 0 to {clients - 1}")
    if app is None:
        return build_task(config)
    training = LocalTraining(**_training(config))
    seed = config.general.seed
    app = replace(
        app,
        running_statistics=config.task.running_statistics,
        loss=config.task.loss or app.loss,
    )
    return app.task(client, clients=clients, seed=seed, training=training, device=device)


def rule_of_client(settings: str, task: Task) -> ClientRule | None:
    """Build the client's side of the algorithm that the server's settings name.

    None for plain local steps. The algorithm must be known here: built in, or of a plugin that the
    device has loaded. Its options are checked as those of a configuration.
    """
    try:
        section = parse_json(settings).get("algorithm")
        if section is None:
            return None
        name, options = section["name"], dict(section["options"])
        rate = section["global_learning_rate"]
        if not isinstance(name, str):
            raise TypeError("its name is not text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError("the server's settings name no algorithm") from error
    kind = _known_here("algorithm", find_algorithm, name)
    given = checked(kind.__init__, options, "algorithm")
    x0 = ModelParts.of(task.init(), task.layout).x0
    return kind(ServerInit(x0, task.clients, rate), **given).client_rule()


def _known_here(kind: str, find: Callable[[str], Found], name: str) -> Found:
    """What the server names, if the device has it: built in, or of a plugin."""
    try:
        return find(name)
    except InputError:
        raise MessageError(
            f"the server's {kind} {sanitized(name)!r} is unknown on this device: install the "
            "server's version of fedpbc, or name the plugin in device.toml"
        ) from None


def _training(config: Config) -> dict[str, Any]:
    train = asdict(config.train)
    train.pop("global_learning_rate")
    # As an earlier version sent it, where nothing of this one is used.
    return {k: v for k, v in without_later("train", train).items() if v is not None}
