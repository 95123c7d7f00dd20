"""The options of ``fedpbc fleet init``, and ``init.toml``, which keeps what later commands need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from annotated_types import Ge, Le, MinLen

from fedpbc import defaults
from fedpbc.data import find_source
from fedpbc.deployment.address import LOOPBACK, Address, check_host, is_loopback, is_unspecified
from fedpbc.deployment.ops.consent import check_complete, check_plugins
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.errors import InputError
from fedpbc.experiments.user_app import load_user_app
from fedpbc.options import checked
from fedpbc.storage.files import refuse_links
from fedpbc.storage.toml import parsed_toml

__all__ = ["FleetPlan", "check_hosts", "listen_host", "read_fleet_plan"]


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The options of a new fleet.

    Attributes:
        hosts: the server's names and addresses; devices use the first.
        app: a Python file with a model and data; an example if neither it nor data is given.
        data: the name of a built-in data set.
        options: of the algorithm.
        train: settings of the local training and η_g; others have their defaults.
        model: the network for the data set; None: the paper's.
        alpha: of the data set's partition.
        data_options, model_options: of the data set, and of the network that is named.
        insecure: no encryption and no keys.
        days: validity of the server's certificate.
    """

    clients: int
    hosts: tuple[str, ...]
    port: int = 8443
    rounds: int = 200
    algorithm: str = "fedpbc"
    round_seconds: float = 60.0
    app: Path | None = None
    data: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    alpha: float = defaults.ALPHA
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    insecure: bool = False
    days: int = 825

    @property
    def server(self) -> Address:
        """The address to which devices connect."""
        return Address(self.hosts[0], self.port)

    @property
    def app_name(self) -> str | None:
        """The name of the file with the model and data, on all machines."""
        if self.data is not None:
            return None
        return "app.py" if self.app is None else self.app.name

    @property
    def needs_files(self) -> bool:
        """Whether the data set is not part of the package."""
        return self.data is not None and find_source(self.data).reads_folder

    @property
    def natural(self) -> bool:
        """Whether the data set's clients bring their own samples, as far as it is known here."""
        return self.data is not None and find_source(self.data).has_clients(self.data_options)

    def validated(self) -> FleetPlan:
        """Check all options, and return the plan with normalized hosts."""
        hosts = check_hosts(self.hosts)
        if self.app is not None and self.data is not None:
            raise InputError("data", self.data, "left out: --app brings its own data")
        if self.app is not None:
            if not self.app.name.isprintable():
                raise InputError("app", str(self.app), "a file with a printable name")
            load_user_app(self.app).module(seed=0)
        train = dict(self.train)
        if self.data is not None:
            train = {**find_source(self.data).settings.get("train", {}), **train}
        FleetSettings.from_dict(
            {
                "clients": self.clients,
                "rounds": self.rounds,
                "algorithm": {"name": self.algorithm, **self.options},
                "train": train,
                **self._data(),
                "fleet": {"round_seconds": self.round_seconds, "wait_for": self.clients},
            }
        )
        return replace(self, hosts=hosts, train=train)

    def _data(self) -> dict[str, Any]:
        """The sections of a built-in data set."""
        if self.data is None:
            return {}
        model = {}
        if self.model is not None:
            model = {"model": {"name": self.model, **self.model_options}}
        data = {"name": self.data, **self.data_options}
        if not find_source(self.data).has_clients(self.data_options):
            data["alpha"] = self.alpha
        return {"data": data, **model}

    def to_toml(self) -> str:
        """Return the content of ``init.toml``: what adding a device later needs."""
        app = None if self.app is None else self.app.name
        fields = {"hosts": list(self.hosts), "port": self.port, "app": app, "data": self.data}
        fields |= {"insecure": self.insecure, "days": self.days}
        comment = "# The options of 'fedpbc fleet init', for 'fleet add' and 'fleet renew'.\n"
        return comment + tomli_w.dumps({k: v for k, v in fields.items() if v is not None})


def check_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """Check a server's names and addresses, and remove duplicates."""
    if not names:
        raise InputError("host is missing: give the server's name or address")
    hosts = tuple(dict.fromkeys(check_host(host, "host") for host in names))
    for host in hosts:
        if is_unspecified(host):
            raise InputError("host", host, "the server's name or address, as devices reach it")
    return hosts


def read_fleet_plan(folder: Path) -> FleetPlan:
    """Read the plan of an existing fleet."""
    if not (folder / "init.toml").is_file():
        expected = "a folder that 'fedpbc fleet init' created, with init.toml"
        raise InputError("folder", str(folder), expected)
    check_complete(folder)
    refuse_links(folder)
    options = checked(_init_toml, parsed_toml(folder / "init.toml"))
    check_plugins(folder / "server")
    settings = read_fleet(folder / "server" / "fleet.toml")
    app = options.pop("app")
    hosts = tuple(check_host(host, "hosts") for host in options.pop("hosts"))
    return FleetPlan(
        **options,
        hosts=hosts,
        app=None if app is None else Path(app),
        clients=settings.clients,
        rounds=settings.config.general.rounds,
        algorithm=settings.config.algorithm["name"],
        round_seconds=settings.fleet.round_seconds,
    )


def _init_toml(
    *,
    hosts: Annotated[list[str], MinLen(1)],
    port: Annotated[int, Ge(1), Le(65535)],
    app: str | None = None,
    data: str | None = None,
    insecure: bool,
    days: Annotated[int, Ge(1)],
) -> None:
    """The keys of ``init.toml`` and their types."""


def listen_host(hosts: Sequence[str]) -> str:
    """Where a server listens: on loopback, if devices reach it under no other name.

    Example:
        >>> listen_host(["localhost"]), listen_host(["localhost", "203.0.113.7"])
        ('127.0.0.1', '0.0.0.0')
    """
    version = 6 if ":" in hosts[0] else 4
    if all(map(is_loopback, hosts)):
        return "::1" if version == 6 else LOOPBACK
    return "::" if version == 6 else "0.0.0.0"
