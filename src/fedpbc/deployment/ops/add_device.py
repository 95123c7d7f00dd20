"""A device that comes later, or again with a new key: ``fedpbc fleet add``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fedpbc.deployment.ops.init import Plan, aside, read_plan, readme_of, write_device
from fedpbc.deployment.security.keys import new_node_key
from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.private import write_secret

__all__ = ["add_device", "replace_device"]

CLIENTS = re.compile(r"^([ \t]*clients[ \t]*=[ \t]*)[0-9]+", re.MULTILINE)


def add_device(folder: Path) -> int:
    """One more client: its device's folder, its key for the server, and a place in fleet.toml.

    Gives its number. A job that has begun keeps its clients: it is not for that job's folder.
    """
    plan = read_plan(folder)
    client, place = plan.clients, folder / "server" / "fleet.toml"
    if has_begun(folder / "server"):
        raise FedpbcError(
            f"a job has begun in {folder}/server, and keeps its {client} clients: when it is done, "
            "move that folder away, put one with its fleet.toml, app, certificates and keys alone "
            "in its place, and say this again"
        )
    text, found = CLIENTS.subn(rf"\g<1>{client + 1}", place.read_text(encoding="utf-8"), count=1)
    if not found:
        raise FedpbcError(f"{place} has no line 'clients = {client}' that could be changed")
    if device_of(folder, client).exists():
        right = "a place that is free: it is left from an attempt that was interrupted"
        raise InputError("device", str(device_of(folder, client)), right)
    make_device(folder, plan, client)
    write_atomically(place, text)
    write_atomically(folder / "README.md", readme_of(folder, replace(plan, clients=client + 1)))
    return client


def has_begun(server: Path) -> bool:
    """Whether there are rounds of a job in a server's folder."""
    written = ("rounds.jsonl", "checkpoint-0.safetensors", "checkpoint-1.safetensors")
    return any((server / name).exists() for name in written)


def replace_device(folder: Path, client: int) -> None:
    """A new key for a client; its device's folder as well, where that is no longer there."""
    plan = read_plan(folder)
    if not 0 <= client < plan.clients:
        raise InputError("replace", client, f"from 0 to {plan.clients - 1}")
    own = device_of(folder, client)
    if not own.exists():
        make_device(folder, plan, client)
    elif plan.insecure:
        raise InputError("replace", client, f"left out: the fleet has no keys, and {own} is there")
    else:
        private, public = new_node_key(f"client-{client}")
        write_secret(own / "node.key", private)
        write_atomically(public_of(folder, client), public)


def make_device(folder: Path, plan: Plan, client: int) -> None:
    """A device's folder, whole or not at all, and then its public key."""
    server = folder / "server"
    app = b""
    if plan.app_name is not None:
        try:
            app = (server / plan.app_name).read_bytes()
        except FileNotFoundError:
            raise FedpbcError(f"{server / plan.app_name} is missing") from None
    trusted = None
    if not plan.insecure:
        try:
            trusted = (server / "certificates" / "ca.crt").read_bytes()
        except FileNotFoundError:
            raise FedpbcError(f"{server}/certificates/ca.crt is missing") from None
    with aside(device_of(folder, client)) as building:
        public = write_device(building, plan, client, app, trusted)
    if public is not None:
        write_atomically(public_of(folder, client), public)


def device_of(folder: Path, client: int) -> Path:
    """A device's folder."""
    return folder / f"device-{client}"


def public_of(folder: Path, client: int) -> Path:
    """What the server knows a device by."""
    return folder / "server" / "keys" / f"client-{client}.pub"
