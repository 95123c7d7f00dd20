"""Create everything that a new fleet needs, in one folder: ``fedpbc fleet init``.

README.md       how to set up and operate the fleet
init.toml       the options, for ``fleet add`` and ``fleet renew``
authority/      signs the server's certificate; must not be copied to other machines
server/         for the server: run by ``fedpbc fleet server``
device-I/       for the device of client I: run by ``fedpbc fleet device``
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
import torch

import fedpbc
from fedpbc.algorithms import ServerInit, find_algorithm
from fedpbc.deployment.address import Address
from fedpbc.deployment.ops.atomic_folder import atomic_folder, remove_incomplete, write_file
from fedpbc.deployment.ops.fleet_plan import FleetPlan, listen_host
from fedpbc.deployment.security.certificates import CertificateAuthority, read_certificate
from fedpbc.deployment.security.keys import generate_node_key, make_server_certificate
from fedpbc.errors import InputError
from fedpbc.experiments.trust import remember_plugins
from fedpbc.simulation.views import views_of
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import read_regular_file

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render_readme", "write_device", "write_fleet"]

AUTHORITY_DAYS = 3650
"""Longer than a server's certificate, which is renewed without any change on devices."""


def write_fleet(folder: Path, plan: FleetPlan) -> FleetPlan:
    """Create a fleet's folder atomically, and return the validated plan."""
    remove_incomplete(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("folder", str(folder), "new or empty")
    plan = plan.validated()
    with atomic_folder(folder) as building:
        server, ca = building / "server", None
        if not plan.insecure:
            authority = CertificateAuthority.generate(max(AUTHORITY_DAYS, plan.days))
            authority.write(building / "authority")
            make_server_certificate(authority, server / "certificates", plan.hosts, plan.days)
            (server / "keys").mkdir()
            ca = authority.certificate_pem()
        app = read_regular_file(plan.app) if plan.app else render("app.py").encode()
        values = {
            **asdict(plan),
            "natural": plan.natural,
            "listen": str(Address(listen_host(plan.hosts), plan.port)),
        }
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
    return _templates().get_template(f"{template}.j2").render(**values)


@cache
def _templates() -> Environment:
    """The templates; kept, since each device of a fleet has its own files from the same ones."""
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
    return environment
