"""Create everything that a new fleet needs, in one folder: ``fedpbc fleet init``.

README.md       how to set up and operate the fleet
init.toml       the options, for ``fleet add`` and ``fleet renew``
authority/      signs the server's certificate; must not be copied to other machines
server/         for the server: run by ``fedpbc fleet server``
device-I/       for the device of client I: run by ``fedpbc fleet device``
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import tomli_w
import torch
from annotated_types import Ge, Le, MinLen

import fedpbc
from fedpbc import defaults
from fedpbc.algorithms import ServerInit, find_algorithm
from fedpbc.data import SOURCES
from fedpbc.deployment.address import LOOPBACK, Address, check_host, is_loopback, is_unspecified
from fedpbc.deployment.ops.consent import INCOMPLETE, check_complete, check_plugins
from fedpbc.deployment.security.certificates import CertificateAuthority, read_certificate
from fedpbc.deployment.security.keys import generate_node_key, make_server_certificate
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.trust import remember_plugins
from fedpbc.experiments.user_app import load_user_app
from fedpbc.options import checked, nearest
from fedpbc.simulation.views import views_of
from fedpbc.storage.atomic import naming_errors, sync_folder, write_atomically
from fedpbc.storage.directories import LOCK, locked_directory, make_directory
from fedpbc.storage.files import is_own_file, read_own_file, read_regular_file, refuse_links
from fedpbc.storage.removal import remove_empty_folder, remove_entries, remove_tree
from fedpbc.storage.toml import parsed_toml

__all__ = [
    "FleetPlan",
    "built_aside",
    "read_fleet_plan",
    "render_readme",
    "write_device",
    "write_fleet",
]

AUTHORITY_DAYS = 3650
"""Longer than a server's certificate, which is renewed without any change on devices."""
EMBEDDED_DATA = ("digits", "fashion")
FLEET_ENTRY = re.compile(r"authority|server|device-[0-9]+|init\.toml|README\.md")
"""What is directly in a fleet's folder."""


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
        return self.data is not None and self.data not in EMBEDDED_DATA

    def validated(self) -> FleetPlan:
        """Check all options, and return the plan with normalized hosts."""
        hosts = check_hosts(self.hosts)
        if self.app is not None and self.data is not None:
            raise InputError("data", self.data, "left out: --app brings its own data")
        if self.app is not None:
            if not self.app.name.isprintable():
                raise InputError("app", str(self.app), "a file with a printable name")
            load_user_app(self.app).module(seed=0)
        if self.data is not None and self.data not in SOURCES:
            raise InputError("data", self.data, nearest(self.data, SOURCES))
        FleetSettings.from_dict(
            {
                "clients": self.clients,
                "rounds": self.rounds,
                "algorithm": {"name": self.algorithm, **self.options},
                "train": dict(self.train),
                **self._data(),
                "fleet": {"round_seconds": self.round_seconds, "wait_for": self.clients},
            }
        )
        return replace(self, hosts=hosts)

    def _data(self) -> dict[str, Any]:
        """The sections of a built-in data set."""
        if self.data is None:
            return {}
        model = {} if self.model is None else {"model": self.model}
        return {"data": {"name": self.data, "alpha": self.alpha}, **model}

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


def write_fleet(folder: Path, plan: FleetPlan) -> FleetPlan:
    """Create a fleet's folder atomically, and return the validated plan."""
    remove_incomplete(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("folder", str(folder), "new or empty")
    plan = plan.validated()
    with built_aside(folder) as building:
        server, ca = building / "server", None
        if not plan.insecure:
            authority = CertificateAuthority.generate(max(AUTHORITY_DAYS, plan.days))
            authority.write(building / "authority")
            make_server_certificate(authority, server / "certificates", plan.hosts, plan.days)
            (server / "keys").mkdir()
            ca = authority.certificate_pem()
        app = read_regular_file(plan.app) if plan.app else render("app.py").encode()
        values = {**asdict(plan), "listen": str(Address(listen_host(plan.hosts), plan.port))}
        _write_machine(server, "server", f"server of {plan.clients} clients", plan, app, values)
        for client in range(plan.clients):
            public = write_device(building / f"device-{client}", plan, client, app, ca)
            if public is not None:
                write_file(server / "keys" / f"client-{client}.pub", public)
        write_file(building / "init.toml", plan.to_toml())
        write_file(building / "README.md", render_readme(building, plan))
    if plan.app_name is not None:
        # Whoever creates a fleet may run its app on this machine.
        remember_plugins([folder / "server" / plan.app_name])
    return plan


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


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file of a folder that is built aside; errors name it."""
    with naming_errors(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def built_aside(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``folder`` on success and else removed.

    Of a process that was killed it stays, and is removed by the next.
    """
    make_directory(folder.parent)
    target = folder.resolve()
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        remove_unused(left)
    building = target.with_name(f".{target.name}.{uuid4().hex[:8]}.tmp")
    # Private until the secrets in it have their own modes.
    building.mkdir(mode=0o700)
    try:
        with locked_directory(building):
            yield building
            with naming_errors(folder):
                sync_tree(building)
                remove_entries(building, [LOCK])
                if folder.exists():
                    move_into(building, folder)
                else:
                    building.chmod(0o755)
                    building.rename(folder)
                sync_folder(target.parent)
    finally:
        remove_tree(building, ignore_errors=True)


def remove_unused(building: Path) -> None:
    """Remove the temporary folder of a process that was killed."""
    if building.is_symlink() or not building.is_dir():
        return
    try:
        with locked_directory(building):
            remove_tree(building, ignore_errors=True)
    except (FedpbcError, OSError):
        return  # Another process is building there.


def sync_tree(folder: Path) -> None:
    """Sync all files below a folder to disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            path = Path(parent, name)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def move_into(building: Path, folder: Path) -> None:
    """Move everything into an existing folder, which may be a shell's working directory.

    A list of what belongs there comes first and goes last: with it, the fleet is incomplete.
    """
    # The options last: without them, no other command takes the folder for a fleet.
    last = ("init.toml", "README.md")
    names = sorted((path.name for path in building.iterdir()), key=lambda n: (n in last, n))
    write_atomically(folder / INCOMPLETE, "".join(f"{name}\n" for name in names))
    for name in names:
        (building / name).rename(folder / name)
    sync_folder(folder)
    remove_entries(folder, [INCOMPLETE])
    remove_empty_folder(building)


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted ``fleet init`` has moved into a folder, and nothing else."""
    if not is_own_file(folder, INCOMPLETE):
        return
    names = read_own_file(folder, INCOMPLETE, 1 << 24).decode(errors="replace").splitlines()
    for name in names:
        path = folder / name
        if not FLEET_ENTRY.fullmatch(name) or path.is_symlink():
            continue
        if path.is_dir():
            remove_tree(path)
        else:
            remove_entries(folder, [name])
    remove_entries(folder, [INCOMPLETE])


def write_device(
    folder: Path, plan: FleetPlan, client: int, app: bytes, ca: bytes | None
) -> bytes | None:
    """Write a device's folder, and return its public key; without ``ca`` there is none.

    ``app`` is the content of the file with the model and data, ``ca`` the authority's certificate.
    """
    values = {"client": client, "server": str(plan.server)}
    _write_machine(folder, "device", f"device of client {client}", plan, app, values)
    if ca is None:
        return None
    write_file(folder / "ca.crt", ca)
    private, public = generate_node_key(f"client-{client}")
    write_atomically(folder / "node.key", private, private=True)
    return public


def _write_machine(
    folder: Path,
    role: str,
    description: str,
    plan: FleetPlan,
    app: bytes,
    values: dict[str, object],
) -> None:
    """Write the settings, the app, a systemd unit and the files of a container."""
    folder.mkdir(exist_ok=True)
    if plan.app_name is not None:
        write_file(folder / plan.app_name, app)
    # Whoever installs a unit or starts a container agrees that the folder's code runs.
    options = ["--trust", *(["--insecure"] if plan.insecure else [])]
    command = ["/opt/fedpbc/bin/fedpbc", "fleet", role, f"/var/lib/fedpbc/{role}", *options]
    command += ["--user", "fedpbc-app"] if role == "device" else []
    values = {
        **values,
        "app": plan.app_name,
        "needs_files": plan.needs_files,
        "role": role,
        "description": description,
        "port": plan.port,
        "privileged": role == "server" and plan.port < 1024,
        "command": " ".join(command),
        "arguments": ["fleet", role, "/fleet", *options],
        "version": fedpbc.__version__,
    }
    settings = "fleet.toml" if role == "server" else "device.toml"
    for name, template in (
        (settings, settings),
        (f"fedpbc-fleet-{role}.service", "service"),
        ("compose.yaml", "compose.yaml"),
        ("Dockerfile", "Dockerfile"),
        (".dockerignore", "dockerignore"),
    ):
        write_file(folder / name, render(template, **values))


def render_readme(folder: Path, plan: FleetPlan) -> str:
    """Return the content of the fleet's ``README.md``."""
    host, expiry = plan.hosts[0], {"server": "", "ca": ""}
    if not plan.insecure:
        for name in expiry:
            certificate = read_certificate(folder / "server" / "certificates" / f"{name}.crt")
            expiry[name] = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    kind = find_algorithm(plan.algorithm)
    has_reports = "reported" in views_of(kind, None)
    rule = kind(ServerInit(torch.zeros(1), plan.clients)).client_rule()
    values = {
        **asdict(plan),
        "last": plan.clients - 1,
        "host": host,
        "host_in_url": f"[{host}]" if ":" in host else host,
        "server": str(plan.server),
        "app": plan.app_name,
        "is_example": plan.app is None,
        "needs_files": plan.needs_files,
        "keeps_state": rule is not None and bool(rule.keeps),
        "can_join": not (
            plan.insecure or plan.app_name is None or (rule is not None and rule.keeps)
        ),
        "view": "reported" if has_reports else "averaged",
        "server_expiry": expiry["server"],
        "authority_expiry": expiry["ca"],
        "version": fedpbc.__version__,
    }
    return render("README.md", **values)


def render(template: str, **values: Any) -> str:
    """Fill in a template of the folder ``templates``; a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedpbc.deployment.ops", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A JSON string is a TOML string, too.
    environment.filters["toml"] = lambda value: tomli_w.dumps({"value": value})[8:].strip()
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    return environment.get_template(f"{template}.j2").render(**values)
