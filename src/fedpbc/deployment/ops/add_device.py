"""Add a device to a fleet, or replace one: ``fedpbc fleet add``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fedpbc.deployment.ops.atomic_folder import atomic_folder
from fedpbc.deployment.ops.fleet_plan import FleetPlan, read_fleet_plan
from fedpbc.deployment.ops.init import render_readme, write_device
from fedpbc.deployment.security.certificates import LARGEST_FILE
from fedpbc.deployment.security.keys import generate_node_key, public_key_of
from fedpbc.deployment.settings import read_fleet
from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import is_own_file, read_inside, read_own_file

__all__ = ["add_device", "job_has_begun", "public_key_path", "replace_device"]

CLIENTS_LINE = re.compile(r"^([ \t]*clients[ \t]*=[ \t]*)[0-9]+", re.MULTILINE)
JOB_FILES = ("rounds.jsonl", "checkpoint-0.safetensors", "checkpoint-1.safetensors")
"""A job has begun in a server's folder that contains one of these."""


def add_device(folder: Path) -> int:
    """Add a client, and return its number: its folder, its key, and ``clients`` in fleet.toml.

    If a job has begun in the server's folder, the client joins it: its key is enough, and
    ``clients`` stays the number that the job began with. Refused where nobody can join.
    """
    plan = read_fleet_plan(folder)
    client, server = plan.clients, folder / "server"
    if job_has_begun(server):
        return add_to_job(folder, plan)
    path = server / "fleet.toml"
    before = _read(server, path.name).decode()
    text, changes = CLIENTS_LINE.subn(rf"\g<1>{client + 1}", before, count=1)
    if not changes:
        raise FedpbcError(f"{path} has no line 'clients = {client}' to change")
    check_keys(folder, plan)
    # Before anything is written: it reads the server's certificate.
    readme = render_readme(folder, replace(plan, clients=client + 1))
    if (folder / f"device-{client}").exists():
        complete_device(folder, plan, client)
    else:
        make_device(folder, plan, client)
    write_atomically(folder / "README.md", readme)
    # Last: with this, the device is part of the fleet, and a second attempt adds another.
    write_atomically(path, text)
    return client


def job_has_begun(server: Path) -> bool:
    """Whether a job has begun in a server's folder."""
    return any((server / name).exists() for name in JOB_FILES)


def add_to_job(folder: Path, plan: FleetPlan) -> int:
    """Make the folder and the key of a client that joins the job that has begun."""
    server = folder / "server"
    if plan.insecure or not read_fleet(server / "fleet.toml").clients_can_join:
        raise FedpbcError(
            f"a job has begun in {server}, and its {plan.clients} clients are fixed: a fleet "
            "without keys, with a built-in data set or with an algorithm whose clients keep "
            "something takes nobody during a job. When it is done, move that folder away, put a "
            "new one with only its fleet.toml, app, certificates and keys in its place, and run "
            "this command again"
        )
    check_keys(folder, plan)
    client = plan.clients
    while public_key_path(folder, client).exists():
        client += 1
    if (folder / f"device-{client}").exists():
        complete_device(folder, plan, client)
    else:
        make_device(folder, plan, client)
    return client


def replace_device(folder: Path, client: int) -> None:
    """Make a new key for a client, and its device's folder if that no longer exists."""
    plan = read_fleet_plan(folder)
    joined = public_key_path(folder, client).exists()
    if not 0 <= client < plan.clients and not joined:
        raise InputError("replace", client, f"from 0 to {plan.clients - 1}")
    check_keys(folder, plan)
    device = folder / f"device-{client}"
    if not device.exists():
        make_device(folder, plan, client)
    elif plan.insecure:
        raise InputError(f"there is nothing to replace: the fleet has no keys, and {device} exists")
    else:
        private, public = generate_node_key(f"client-{client}")
        write_atomically(device / "node.key", private, private=True)
        write_atomically(public_key_path(folder, client), public)


def check_keys(folder: Path, plan: FleetPlan) -> None:
    """Raise if there is no folder for the new key, before anything is written."""
    keys = public_key_path(folder, 0).parent
    if not plan.insecure and not keys.is_dir():
        raise FedpbcError(f"{keys} is missing: restore it, with the keys of the fleet's devices")


def make_device(folder: Path, plan: FleetPlan, client: int) -> None:
    """Create a device's folder atomically, then its public key for the server."""
    server = folder / "server"
    app = _read(server, plan.app_name) if plan.app_name is not None else b""
    ca = None if plan.insecure else _read(server / "certificates", "ca.crt")
    with atomic_folder(folder / f"device-{client}") as building:
        public = write_device(building, plan, client, app, ca)
    if public is not None:
        write_atomically(public_key_path(folder, client), public)


def complete_device(folder: Path, plan: FleetPlan, client: int) -> None:
    """Use the folder of a device that an interrupted attempt has made; it is always complete."""
    device = folder / f"device-{client}"
    problem = f"{device} exists already, and not from an interrupted attempt: remove it"
    if not is_own_file(device, "device.toml"):
        raise FedpbcError(problem)
    if plan.insecure:
        return
    try:
        private = read_own_file(device, "node.key", LARGEST_FILE)
        public = public_key_of(private, f"client-{client}")
    except (OSError, ValueError):
        raise FedpbcError(problem) from None
    write_atomically(public_key_path(folder, client), public)


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_inside(folder, name, LARGEST_FILE)
    except FileNotFoundError:
        raise FedpbcError(f"{folder / name} is missing") from None


def public_key_path(folder: Path, client: int) -> Path:
    """Return the file with a device's public key, which the server needs."""
    return folder / "server" / "keys" / f"client-{client}.pub"
