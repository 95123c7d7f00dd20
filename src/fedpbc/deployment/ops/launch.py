"""How Flower's processes are started: secure by default, and quiet towards the outside."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.deployment.address import HERE, Address
from fedpbc.errors import FedpbcError, InputError, MissingExtraError, Verbatim

__all__ = ["QUIETLY", "Launch", "need_flower"]

QUIETLY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nothing goes out to Flower's makers, and nothing is installed while a fleet runs."""
CONNECTION = "fleet"
POLL, POLL_SECONDS = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.25"
"""How soon a message that has come is worked on; a second otherwise."""


def need_flower() -> None:
    """Flower must be installed.

    Example:
        >>> try:
        ...     need_flower()
        ... except MissingExtraError as error:
        ...     assert "pip install 'fedpbc[flower]'" in str(error)
    """
    if find_spec("flwr") is None:
        raise MissingExtraError("a real fleet", "flower")


@dataclass(frozen=True)
class Launch:
    """The commands of one fleet's processes.

    Without certificates it refuses to make any, unless it is told ``insecure``.

    Attributes:
        home: a folder of Flower's own, for this fleet alone.
        host: the server's address, as devices know it.
        port: its port.
        certificates: the folder with ``ca.crt``; on the server also ``server.crt`` and
            ``server.key``.
        insecure: no encryption and no node keys.
    """

    home: Path
    host: str
    port: int
    certificates: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure == (self.certificates is not None):
            right = "a folder of certificates, or --insecure, and not both"
            raise InputError("certificates", Verbatim(f"{self.certificates}"), right)
        if self.certificates is not None and not (self.certificates / "ca.crt").is_file():
            raise InputError("certificates", str(self.certificates), "a folder with ca.crt")

    @property
    def address(self) -> str:
        """Where the server is."""
        return str(Address(self.host, self.port))

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """For every one of the processes."""
        # Flower's processes start each other by name.
        places = [self.home / "bin", Path(sys.executable).parent, base.get("PATH", os.defpath)]
        path = os.pathsep.join(map(str, places))
        own = {"PATH": path, "FLWR_HOME": str(self.home), POLL: POLL_SECONDS}
        return {**base, **QUIETLY, **own}

    def _trust(self) -> list[str]:
        if self.certificates is None:
            return ["--insecure"]
        return ["--root-certificates", str(self.certificates / "ca.crt")]

    def superlink(self, database: Path) -> list[str]:
        """The server that keeps messages; it outlasts its own restarts by its database."""
        own = ["--host", self.host, "--port", str(self.port), "--database", str(database)]
        secure = ["--insecure"]
        if self.certificates is not None:
            secure = ["--enable-supernode-auth"]
            for option, file in (("ca-certfile", "ca"), ("certfile", "server")):
                secure += [f"--ssl-{option}", str(self.certificates / f"{file}.crt")]
            secure += ["--ssl-keyfile", str(self.certificates / "server.key")]
        return [program("flower-superlink"), *own, "--isolation", "process", *secure]

    def superexec(self) -> list[str]:
        """What starts the server app, apart from the SuperLink: its end is not the app's."""
        return [program("flower-superexec"), "--runtime-api-address", self.address, *self._trust()]

    def supernode(self, trainer: Path, port: int, key: Path | None = None) -> list[str]:
        """A device's part, which takes messages to the trainer at that socket."""
        # In quotes as TOML has them.
        config = ["--node-config", f"trainer={json.dumps(str(trainer))}"]
        own = ["--superlink", self.address, "--host", HERE, "--port", str(port)]
        if self.certificates is not None:
            if key is None:
                raise InputError("key", Verbatim("missing"), "the node's own, or --insecure")
            own += ["--auth-supernode-private-key", str(key)]
        need_flower()
        return [
            sys.executable,
            "-m",
            "fedpbc.deployment.device.supernode",
            *own,
            *self._trust(),
            *config,
        ]

    def submit(self, folder: Path) -> list[str]:
        """Starts the job of a folder, or goes on with it."""
        run = ["-c", f"folder={json.dumps(str(folder.resolve()))}"]
        return [program("flwr"), "run", str(self.home / "app"), CONNECTION, *run]

    def prepare_device(self) -> None:
        """Write what a device's Flower wants to find: our command for a message's process."""
        place = self.home / "bin"
        place.mkdir(parents=True, exist_ok=True)
        command = place / "flwr-clientapp"
        own = shlex.join([sys.executable, "-m", "fedpbc.deployment.device.client_process"])
        command.write_text(f'#!/bin/sh\nexec {own} "$@"\n')
        command.chmod(0o755)

    def prepare(self) -> None:
        """Write what Flower's own commands want to find: the connection, and our app."""
        (self.home / "app").mkdir(parents=True, exist_ok=True)
        connection: dict[str, object] = {"address": self.address}
        if self.certificates is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str((self.certificates / "ca.crt").resolve())
        superlink = {"default": CONNECTION, CONNECTION: connection}
        (self.home / "config.toml").write_text(tomli_w.dumps({"superlink": superlink}))
        (self.home / "app" / "pyproject.toml").write_text(tomli_w.dumps(APP))


APP: dict[str, Any] = {
    "project": {
        "name": "fedpbc-fleet",
        "version": "1.0.0",
        "description": "fedpbc over a real fleet",
        "license": "Apache-2.0",
        "dependencies": [],
    },
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedpbc",
                "components": {
                    "serverapp": "fedpbc.deployment.server.server_app:app",
                    "clientapp": "fedpbc.deployment.device.client_app:app",
                },
                "config": {"folder": ""},
            }
        }
    },
}
"""A Flower app that only names ours: the code is the installed package's, here and on devices."""


def program(name: str) -> str:
    """One of Flower's commands, of the same installation as this Python."""
    need_flower()
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise FedpbcError(f"Flower is installed, but its command {name} is not found")
    return found
