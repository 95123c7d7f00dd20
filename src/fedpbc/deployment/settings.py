"""A fleet's configuration: a run's, and a section ``[fleet]``.

The server alone is configured. How to train goes out with every message, as plain JSON, and a
trainer adds what only a device knows: where its data is, and on what it computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor

from fedpbc.algorithms import Algorithm, ServerInit, find_algorithm
from fedpbc.deployment.address import Address, parse_address
from fedpbc.deployment.protocol.messages import MessageError
from fedpbc.deployment.user_app import UserApp, load_user_app
from fedpbc.errors import InputError, Verbatim
from fedpbc.experiments.build import build_task
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.configuration import Config
from fedpbc.options import checked
from fedpbc.tasks import LocalTraining, Task
from fedpbc.tasks.layout import Layout, layout_of, parameters_of

__all__ = ["FleetSection", "FleetSettings", "read_fleet", "task_of_client"]


@dataclass(frozen=True, kw_only=True)
class FleetSection:
    """What only a real fleet has.

    Attributes:
        round_seconds: when a round ends, if not all have answered before.
        wait_for: how many clients must have been heard from before the first round begins.
        app: a Python file with one's own model and data.
        views_every: rounds between writing the views' models; the last round always does.
        listen: where devices reach the server, ``host:port``; 0.0.0.0 is all its addresses.
    """

    round_seconds: Annotated[float, Gt(0)] = 60.0
    wait_for: Annotated[int, Ge(0)] = 1
    app: str | None = None
    views_every: Annotated[int, Ge(1)] = 10
    listen: str = "0.0.0.0:8443"

    @property
    def address(self) -> Address:
        """Where the server listens."""
        return parse_address(self.listen, "fleet.listen")


@dataclass(frozen=True)
class FleetSettings:
    """A fleet's complete, checked configuration.

    Example:
        >>> settings = FleetSettings.from_dict({"clients": 3, "fleet": {"round_seconds": 5.0}})
        >>> settings.fleet.round_seconds, settings.config.algorithm["name"]
        (5.0, 'fedpbc')
    """

    config: Config
    fleet: FleetSection

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> FleetSettings:
        """Check everything that was given and fill in the rest."""
        rest = dict(given)
        section = rest.pop("fleet", {})
        if not isinstance(section, Mapping):
            raise InputError("fleet", section, "a table [fleet]")
        fleet = FleetSection(**checked(FleetSection, section, "fleet"))
        parse_address(fleet.listen, "fleet.listen")
        config = Config.from_dict(rest)
        clients = config.general.clients
        if clients is None:
            raise InputError("clients", Verbatim("missing"), "how many devices the fleet has")
        if fleet.wait_for > clients:
            raise InputError("fleet.wait_for", fleet.wait_for, f"at most the {clients} clients")
        if config.task.name != "classification":
            right = "'classification': quadratics are for simulations"
            raise InputError("task", config.task.name, right)
        if find_algorithm(config.algorithm["name"]).needs_probabilities:
            right = "one that needs no probabilities of links: no server knows them"
            raise InputError("algorithm", config.algorithm["name"], right)
        return cls(config, fleet)

    @property
    def clients(self) -> int:
        """m."""
        assert self.config.general.clients is not None
        return self.config.general.clients

    @property
    def training(self) -> LocalTraining:
        """The local steps."""
        return LocalTraining(**_training(self.config))

    def sent(self) -> str:
        """What goes out to the trainers."""
        config = self.config
        told: dict[str, Any] = {
            "seed": config.general.seed,
            "clients": self.clients,
            "train": _training(config),
        }
        if self.fleet.app is None:
            told["data"] = {"name": config.data.name, "alpha": config.data.alpha}
            told["model"] = {"name": config.model.name}
        return json.dumps(told, sort_keys=True)

    def first_model(self) -> tuple[Tensor, Layout]:
        """x⁰, and what its numbers stand for."""
        if self.fleet.app is None:
            task = build_task(self.config)
            return task.init(), task.layout
        module = load_user_app(Path(self.fleet.app)).module(self.config.general.seed)
        layout = layout_of(module)
        return layout.flatten(parameters_of(module)), layout

    def algorithm(self, x0: Tensor) -> Algorithm:
        """The server's rule."""
        options = dict(self.config.algorithm)
        kind = find_algorithm(options.pop("name"))
        return kind(ServerInit(x0, self.clients, self.config.train.global_learning_rate), **options)

    def whole_task(self) -> Task:
        """The whole fleet's task in one place, to simulate the same."""
        if self.fleet.app is None:
            return build_task(self.config)
        own = load_user_app(Path(self.fleet.app))
        seed = self.config.general.seed
        return own.whole_task(clients=self.clients, seed=seed, training=self.training)


def read_fleet(path: Path) -> FleetSettings:
    """From a TOML file; files that it names are looked for beside it, then here."""
    given = read_toml(path)
    fleet = given.get("fleet")
    if isinstance(fleet, dict) and isinstance(fleet.get("app"), str):
        beside = path.parent / fleet["app"]
        fleet["app"] = str((beside if beside.exists() else Path(fleet["app"])).resolve())
    return FleetSettings.from_dict(given)


def task_of_client(
    sent: str, client: int, *, own: UserApp | None = None, data_dir: str | None = None, device: str
) -> Task:
    """A trainer's task, from what the server sent and what only the device knows.

    Only the numbers and names that :meth:`FleetSettings.sent` sends are taken, and all are
    checked: a server can name none of the device's files.
    """
    try:
        told = json.loads(sent)
        seed, clients, train = told["seed"], told["clients"], told["train"]
        named = {} if own else {"data": told["data"]["name"], "model": told["model"]["name"]}
        alpha = 0.1 if own else told["data"]["alpha"]
    except (ValueError, KeyError, TypeError) as error:
        right = "the server speaks of another model and data" if own is None else "unreadable"
        raise MessageError(f"its settings are {right}: start the trainer with --app") from error
    if not all(isinstance(name, str) for name in named.values()):
        raise MessageError("its settings name no data and model")
    given: dict[str, Any] = {"seed": seed, "clients": clients, "train": train, "device": device}
    if own is None:
        given["data"] = {"name": named["data"], "alpha": alpha}
        given["model"] = {"name": named["model"]}
        if data_dir is not None:
            given["data"]["dir"] = data_dir
    config = Config.from_dict(given)
    if clients is None:
        raise MessageError("its settings do not say how many clients there are")
    if not 0 <= client < clients:
        raise InputError("client", client, f"from 0 to {clients - 1}")
    if own is None:
        return build_task(config)
    training = LocalTraining(**_training(config))
    return own.task(client, clients=clients, seed=seed, training=training, device=device)


def _training(config: Config) -> dict[str, Any]:
    train = asdict(config.train)
    train.pop("global_learning_rate")
    return train
