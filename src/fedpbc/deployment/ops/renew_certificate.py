"""A new certificate for the server, from the authority that was kept: ``fedpbc fleet renew``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from fedpbc.deployment.ops.init import check_days, check_hosts, read_plan, readme_of
from fedpbc.deployment.security.certificate_authority import Authority, end_of, read_server
from fedpbc.errors import FedpbcError
from fedpbc.storage.atomic import write_atomically

__all__ = ["renew_certificate"]


def renew_certificate(folder: Path, hosts: Sequence[str] = (), days: int | None = None) -> datetime:
    """Certify the server's key anew; gives when that ends.

    The key stays, so that one file changes and devices need nothing.

    Args:
        folder: what ``fedpbc fleet init`` made.
        hosts: the server's names and addresses; those of the old certificate if there are none.
        days: how long it lasts; as long as the first one unless given.
    """
    plan = read_plan(folder)
    if days is not None:
        check_days(days)
    if plan.insecure:
        raise FedpbcError(f"{folder} has no certificates: it was made with --insecure")
    place = folder / "server" / "certificates" / "server.crt"
    key, named = read_server(place)
    if hosts:
        plan = replace(plan, hosts=check_hosts(hosts))
        named = list(plan.hosts)
    authority = Authority.read(folder / "authority")
    write_atomically(place, authority.certify(key, named, plan.days if days is None else days))
    write_atomically(folder / "init.toml", plan.kept())
    write_atomically(folder / "README.md", readme_of(folder, plan))
    return end_of(place)
