"""Create everything that a new fleet needs, in one folder: ``fedpbc fleet init``.

README.md       how to set up and operate the fleet
init.toml       the options, for ``fleet add`` and ``fleet renew``
authority/      signs the server's certificate; must not be copied to other machines
server/         for the server: run by ``fedpbc fleet server``
device-I/       for the device of client I: run by ``fedpbc fleet device``
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import tomli_w
from annotated_types import Ge, Le, MinLen

import fedpbc
from fedpbc.algorithms import find_algorithm
from fedpbc.data import SOURCES
from fedpbc.deployment.address import Address, check_host, is_unspecified
from fedpbc.deployment.security.certificates import CertificateAuthority, read_certificate
from fedpbc.deployment.security.keys import generate_node_key, make_server_certificate
from fedpbc.deployment.settings import FleetSettings, read_fleet
from fedpbc.deployment.user_app import load_user_app
from fedpbc.errors import InputError
from fedpbc.options import checked, nearest
from fedpbc.simulation.views import views_of
from fedpbc.storage.atomic import sync_folder, write_atomically
from fedpbc.storage.toml import parsed_toml

__all__ = ["FleetPlan", "read_fleet_plan", "render_readme", "write_device", "write_fleet"]

AUTHORITY_DAYS = 3650
"""Longer than a server's certificate, which is renewed without any change on devices."""
EMBEDDED_DATA = ("digits", "fashion")


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The options of a new fleet.

    Attributes:
        hosts: the server's names and addresses; devices use the first.
        app: a Python file with a model and data; an example if neither it nor data is given.
        data: the name of a built-in data set.
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
                "algorithm": self.algorithm,
                "fleet": {"round_seconds": self.round_seconds, "wait_for": self.clients},
            }
        )
        return replace(self, hosts=hosts)

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
    options = checked(_init_toml, parsed_toml(folder / "init.toml"))
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
        app = plan.app.read_bytes() if plan.app else render("app.py").encode()
        unspecified = "::" if ":" in plan.hosts[0] else "0.0.0.0"
        values = {**asdict(plan), "listen": str(Address(unspecified, plan.port))}
        _write_machine(server, "server", f"server of {plan.clients} clients", plan, app, values)
        for client in range(plan.clients):
            public = write_device(building / f"device-{client}", plan, client, app, ca)
            if public is not None:
                (server / "keys" / f"client-{client}.pub").write_bytes(public)
        (building / "init.toml").write_text(plan.to_toml(), encoding="utf-8")
        (building / "README.md").write_text(render_readme(building, plan), encoding="utf-8")
    return plan


@contextmanager
def built_aside(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``folder`` on success and else removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.resolve().with_name(f".{folder.resolve().name}.{uuid4().hex[:8]}.tmp")
    # Private until the secrets in it have their own modes.
    building.mkdir(mode=0o700)
    try:
        yield building
        if folder.exists():
            # It may be a shell's working directory, so it stays; the README is moved last.
            for path in sorted(building.iterdir(), key=lambda path: path.name == "README.md"):
                path.rename(folder / path.name)
            building.rmdir()
        else:
            building.chmod(0o755)
            building.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


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
    (folder / "ca.crt").write_bytes(ca)
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
        (folder / plan.app_name).write_bytes(app)
    options = ["--insecure"] if plan.insecure else []
    command = ["/opt/fedpbc/bin/fedpbc", "fleet", role, f"/var/lib/fedpbc/{role}", *options]
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
        (folder / name).write_text(render(template, **values), encoding="utf-8")


def render_readme(folder: Path, plan: FleetPlan) -> str:
    """Return the content of the fleet's ``README.md``."""
    host, expiry = plan.hosts[0], {"server": "", "ca": ""}
    if not plan.insecure:
        for name in expiry:
            certificate = read_certificate(folder / "server" / "certificates" / f"{name}.crt")
            expiry[name] = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    has_reports = "reported" in views_of(find_algorithm(plan.algorithm), None)
    values = {
        **asdict(plan),
        "last": plan.clients - 1,
        "host": host,
        "host_in_url": f"[{host}]" if ":" in host else host,
        "server": str(plan.server),
        "app": plan.app_name,
        "is_example": plan.app is None,
        "needs_files": plan.needs_files,
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
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    return environment.get_template(f"{template}.j2").render(**values)
