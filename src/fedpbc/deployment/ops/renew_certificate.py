"""Issue a new server certificate from the fleet's authority: ``fedpbc fleet renew``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from fedpbc.deployment.ops.fleet_plan import check_hosts, read_fleet_plan
from fedpbc.deployment.ops.init import render_readme
from fedpbc.deployment.security.certificates import (
    CertificateAuthority,
    read_certificate,
    read_server_certificate,
)
from fedpbc.errors import FedpbcError
from fedpbc.storage.atomic import write_atomically

__all__ = ["renew_certificate"]


def renew_certificate(folder: Path, hosts: Sequence[str] = (), days: int | None = None) -> datetime:
    """Issue a new certificate for the server's key, and return when it expires.

    The key stays, so that only one file changes, and none on devices. By default, the hosts are
    those of the old certificate, and the validity that of the first.
    """
    plan = read_fleet_plan(folder)
    if plan.insecure:
        raise FedpbcError(f"{folder} has no certificates: it was created with --insecure")
    path = folder / "server" / "certificates" / "server.crt"
    key, names = read_server_certificate(path)
    if hosts:
        plan = replace(plan, hosts=check_hosts(hosts))
        names = list(plan.hosts)
    authority = CertificateAuthority.read(folder / "authority")
    # It reads the server's copy of the authority: what is wrong there is found before the first
    # file changes. It is written with the new date at the end.
    render_readme(folder, plan)
    write_atomically(path, authority.issue(key, names, plan.days if days is None else days))
    write_atomically(folder / "init.toml", plan.to_toml())
    write_atomically(folder / "README.md", render_readme(folder, plan))
    end: datetime = read_certificate(path).not_valid_after_utc
    return end
