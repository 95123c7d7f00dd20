"""Everything that a real deployment needs, written into one folder: ``fedpbc fleet init``.

README.md       how to set the fleet up, and what to do later
init.toml       what was asked for
authority/      what signs the server's certificate; stays here
server/         for the server: ``fedpbc fleet server`` runs it
device-I/       for the device that is client I: ``fedpbc fleet device`` runs it
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import tomli_w
from annotated_types import Ge, Le, MinLen

import fedpbc
from fedpbc.algorithms import find_algorithm
from fedpbc.data import SOURCES
from fedpbc.deployment.address import Address, check_host, is_everywhere
from fedpbc.deployment.ops.templating import rendered
from fedpbc.deployment.security.certificate_authority import Authority, end_of
from fedpbc.deployment.security.keys import new_node_key, new_server_key
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.deployment.user_app import load_user_app
from fedpbc.errors import InputError, Verbatim
from fedpbc.options import checked, nearest
from fedpbc.simulation.views import views_of
from fedpbc.storage.atomic import sync_folder
from fedpbc.storage.private import write_secret
from fedpbc.storage.toml import parsed_toml

__all__ = ["Plan", "read_plan", "readme_of", "write_device", "write_fleet"]

AUTHORITY_DAYS = 3650
"""Longer than a server's certificate: a new one of those needs nothing new on devices."""
EXAMPLE = "app.py"
EMBEDDED = ("digits", "fashion")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked for.

    Attributes:
        clients: how many devices there are.
        hosts: the names and addresses by which devices know the server; they use the first.
        port: the server's port.
        rounds: T.
        algorithm: by its name.
        round_seconds: when a round ends, if not all have answered before.
        app: the file with one's own model and data; with neither it nor data, an example.
        data: a data set that is known by name.
        insecure: no encryption, and no keys.
        days: how long the server's certificate lasts.

    Example:
        >>> Plan(clients=3, hosts=("10.0.0.1",)).server
        Address(host='10.0.0.1', port=8443)
    """

    clients: int
    hosts: tuple[str, ...]
    port: int = 8443
    rounds: int = 200
    algorithm: str = "fedpbc"
    round_seconds: float = 60.0
    app: Path | None = None
    data: str | None = None
    insecure: bool = False
    days: int = 825

    @property
    def server(self) -> Address:
        """Where devices find the server."""
        return Address(self.hosts[0], self.port)

    @property
    def app_name(self) -> str | None:
        """What the file with the model and the data is called on all machines."""
        if self.data is not None:
            return None
        return EXAMPLE if self.app is None else self.app.name

    @property
    def needs_files(self) -> bool:
        """Whether its data set does not come with the package."""
        return self.data is not None and self.data not in EMBEDDED

    def checked(self) -> Plan:
        """The same, once everything that can be wrong with it was looked at."""
        hosts = check_hosts(self.hosts)
        check_days(self.days)
        if not 1 <= self.port <= 65535:
            raise InputError("port", self.port, "from 1 to 65535")
        if self.app is not None and self.data is not None:
            raise InputError("data", self.data, "left out: --app has data of its own")
        if self.app is not None:
            if not self.app.name.isprintable():
                raise InputError("app", str(self.app), "a file with a plain name")
            load_user_app(self.app).module(seed=0)
        if self.data is not None and self.data not in SOURCES:
            raise InputError("data", self.data, nearest(self.data, SOURCES))
        fleet = {"round_seconds": self.round_seconds, "wait_for": self.clients}
        given = {"clients": self.clients, "rounds": self.rounds, "algorithm": self.algorithm}
        FleetSettings.from_dict({**given, "fleet": fleet})
        return replace(self, hosts=hosts)

    def kept(self) -> str:
        """``init.toml``: what is needed when something is added later."""
        own = None if self.app is None else self.app.name
        fields = {"hosts": list(self.hosts), "port": self.port, "app": own, "data": self.data}
        fields |= {"insecure": self.insecure, "days": self.days}
        comment = "# What 'fedpbc fleet init' was told; for 'fleet add' and 'fleet renew'.\n"
        return comment + tomli_w.dumps({k: v for k, v in fields.items() if v is not None})


def check_hosts(given: Sequence[str]) -> tuple[str, ...]:
    """A server's names and addresses, each once."""
    if not given:
        raise InputError("host", Verbatim("missing"), "the server's name or address")
    hosts = tuple(dict.fromkeys(check_host(host, "host") for host in given))
    for host in hosts:
        if is_everywhere(host):
            raise InputError("host", host, "where the server is, as seen from devices")
    return hosts


def check_days(days: int) -> None:
    """How long a certificate may last."""
    if not 1 <= days <= 36500:
        raise InputError("days", days, "from 1 to 36500")


def read_plan(folder: Path) -> Plan:
    """The plan of a fleet that was written before."""
    if not (folder / "init.toml").is_file():
        raise InputError("folder", str(folder), "what 'fedpbc fleet init' made, with init.toml")
    given = checked(_kept, parsed_toml(folder / "init.toml"))
    fleet = read_fleet(folder / "server" / "fleet.toml")
    general, own = fleet.config.general, given.pop("app")
    hosts = tuple(check_host(host, "hosts") for host in given.pop("hosts"))
    return Plan(
        **given,
        hosts=hosts,
        app=None if own is None else Path(own),
        clients=fleet.clients,
        rounds=general.rounds,
        algorithm=fleet.config.algorithm["name"],
        round_seconds=fleet.fleet.round_seconds,
    )


def _kept(
    *,
    hosts: Annotated[list[str], MinLen(1)],
    port: Annotated[int, Ge(1), Le(65535)],
    app: str | None = None,
    data: str | None = None,
    insecure: bool,
    days: Annotated[int, Ge(1)],
) -> None:
    """What stands in ``init.toml``."""


def write_fleet(folder: Path, plan: Plan) -> Plan:
    """Write everything, or nothing; gives the plan as it was carried out."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("folder", str(folder), "new or empty")
    plan = plan.checked()
    with aside(folder) as building:
        server = building / "server"
        trusted = None
        if not plan.insecure:
            authority = Authority.new(max(AUTHORITY_DAYS, plan.days))
            authority.write(building / "authority")
            new_server_key(authority, server / "certificates", plan.hosts, plan.days)
            (server / "keys").mkdir()
            trusted = authority.certificate_pem()
        app = plan.app.read_bytes() if plan.app else rendered("app.py").encode()
        write_server(server, plan, app)
        for client in range(plan.clients):
            public = write_device(building / f"device-{client}", plan, client, app, trusted)
            if public is not None:
                (server / "keys" / f"client-{client}.pub").write_bytes(public)
        (building / "init.toml").write_text(plan.kept(), encoding="utf-8")
        (building / "README.md").write_text(readme_of(building, plan), encoding="utf-8")
    return plan


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A folder to build in, which takes the other's place when all went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.resolve().with_name(f".{folder.resolve().name}.{uuid4().hex[:8]}.tmp")
    # Nobody else looks into it before its secrets have their modes.
    building.mkdir(mode=0o700)
    try:
        yield building
        if folder.exists():
            # It may be where somebody's shell is: it stays, and the page comes last.
            for built in sorted(building.iterdir(), key=lambda path: path.name == "README.md"):
                built.rename(folder / built.name)
            building.rmdir()
        else:
            building.chmod(0o755)
            building.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_server(folder: Path, plan: Plan, app: bytes) -> None:
    """The server's folder, but for its keys and certificates."""
    folder.mkdir(exist_ok=True)
    everywhere = "::" if ":" in plan.hosts[0] else "0.0.0.0"
    listen = str(Address(everywhere, plan.port))
    values = {**asdict(plan), "app": plan.app_name, "listen": listen}
    values["needs_files"] = plan.needs_files
    (folder / "fleet.toml").write_text(rendered("fleet.toml", **values), encoding="utf-8")
    if plan.app_name is not None:
        (folder / plan.app_name).write_bytes(app)
    write_services(folder, "server", f"server of {plan.clients} clients", plan)


def write_device(
    folder: Path, plan: Plan, client: int, app: bytes, trusted: bytes | None
) -> bytes | None:
    """A device's folder; gives its public key, which is for the server.

    Args:
        folder: the device's own.
        plan: the fleet's.
        client: which one.
        app: the file with the model and the data.
        trusted: the authority's certificate; None without encryption.
    """
    folder.mkdir(exist_ok=True)
    values = {"client": client, "server": str(plan.server), "app": plan.app_name}
    values["needs_files"] = plan.needs_files
    (folder / "device.toml").write_text(rendered("device.toml", **values), encoding="utf-8")
    if plan.app_name is not None:
        (folder / plan.app_name).write_bytes(app)
    write_services(folder, "device", f"device of client {client}", plan)
    if trusted is None:
        return None
    (folder / "ca.crt").write_bytes(trusted)
    private, public = new_node_key(f"client-{client}")
    write_secret(folder / "node.key", private)
    return public


def write_services(folder: Path, role: str, about: str, plan: Plan) -> None:
    """What starts it: by systemd, or in a container."""
    options = ["--insecure"] if plan.insecure else []
    place = f"/var/lib/fedpbc/{role}"
    values = {
        "role": role,
        "about": about,
        "port": plan.port,
        "privileged": role == "server" and plan.port < 1024,
        "command": " ".join(["/opt/fedpbc/bin/fedpbc", "fleet", role, place, *options]),
        "arguments": ["fleet", role, "/fleet", *options],
        "version": fedpbc.__version__,
    }
    for name, template in (
        (f"fedpbc-fleet-{role}.service", "service"),
        ("compose.yaml", "compose.yaml"),
        ("Dockerfile", "Dockerfile"),
        (".dockerignore", "dockerignore"),
    ):
        (folder / name).write_text(rendered(template, **values), encoding="utf-8")


def readme_of(folder: Path, plan: Plan) -> str:
    """The page for people."""
    host, ends = plan.hosts[0], {"server": "", "ca": ""}
    if not plan.insecure:
        for name in ends:
            place = folder / "server" / "certificates" / f"{name}.crt"
            ends[name] = f"{end_of(place):%Y-%m-%d}"
    return rendered(
        "README.md",
        clients=plan.clients,
        last=plan.clients - 1,
        host=host,
        host_in_url=f"[{host}]" if ":" in host else host,
        port=plan.port,
        server=str(plan.server),
        app=plan.app_name,
        own_app=plan.app is not None,
        data=plan.data,
        needs_files=plan.needs_files,
        insecure=plan.insecure,
        view="reported"
        if "reported" in views_of(find_algorithm(plan.algorithm), None)
        else "averaged",
        ends=ends["server"],
        authority_ends=ends["ca"],
        version=fedpbc.__version__,
    )
