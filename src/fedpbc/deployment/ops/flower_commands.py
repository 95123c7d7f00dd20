"""The commands that start Flower's processes: secure by default, without telemetry."""

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

from fedpbc.deployment.address import LOOPBACK, Address
from fedpbc.errors import FedpbcError, InputError, MissingExtraError
from fedpbc.storage.atomic import write_atomically

__all__ = ["FlowerCommands", "require_flower"]

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # How soon a received message is processed; Flower's default is a second.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
CONNECTION = "fleet"
"""The name of the connection in Flower's own configuration."""


def require_flower() -> None:
    """Raise a MissingExtraError if Flower is not installed."""
    if find_spec("flwr") is None:
        raise MissingExtraError("a real fleet", "flower")


@dataclass(frozen=True)
class FlowerCommands:
    """Builds the commands of one fleet's processes; without TLS only if ``insecure``.

    Attributes:
        home: Flower's home folder, for this fleet alone.
        server: the server's address.
        certificates: the folder with ``ca.crt``; on the server also ``server.crt`` and
            ``server.key``.
        insecure: no encryption and no node keys.
    """

    home: Path
    server: Address
    certificates: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure == (self.certificates is not None):
            raise InputError("give either a folder of certificates or --insecure, and not both")
        if self.certificates is not None and not (self.certificates / "ca.crt").is_file():
            raise InputError("certificates", str(self.certificates), "a folder with ca.crt")

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of every process."""
        # Flower's processes start each other by name.
        folders = [self.home / "bin", Path(sys.executable).parent, base.get("PATH", os.defpath)]
        path = os.pathsep.join(map(str, folders))
        return {**base, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(self.home)}

    def _trust(self) -> list[str]:
        if self.certificates is None:
            return ["--insecure"]
        return ["--root-certificates", str(self.certificates / "ca.crt")]

    def superlink(self, database: Path) -> list[str]:
        """The SuperLink, which stores messages; its database survives a restart."""
        options = ["--host", self.server.host, "--port", str(self.server.port)]
        options += ["--database", str(database), "--isolation", "process"]
        if self.certificates is None:
            options += ["--insecure"]
        else:
            options += ["--enable-supernode-auth"]
            options += ["--ssl-ca-certfile", str(self.certificates / "ca.crt")]
            options += ["--ssl-certfile", str(self.certificates / "server.crt")]
            options += ["--ssl-keyfile", str(self.certificates / "server.key")]
        return [flower_program("flower-superlink"), *options]

    def superexec(self) -> list[str]:
        """The SuperExec, which starts the server app; the app survives the SuperLink's end."""
        options = ["--runtime-api-address", str(self.server), *self._trust()]
        return [flower_program("flower-superexec"), *options]

    def supernode(self, trainer: Path, port: int, key: Path | None = None) -> list[str]:
        """A device's SuperNode, which passes messages to the trainer at that socket."""
        options = ["--superlink", str(self.server), "--host", LOOPBACK, "--port", str(port)]
        if self.certificates is not None:
            if key is None:
                raise InputError("the node's key is missing: give it, or use --insecure")
            options += ["--auth-supernode-private-key", str(key)]
        require_flower()
        # Flower parses the value as TOML.
        config = ["--node-config", f"trainer={json.dumps(str(trainer))}"]
        module = "fedpbc.deployment.device.supernode"
        return [sys.executable, "-m", module, *options, *self._trust(), *config]

    def submit(self, folder: Path) -> list[str]:
        """Submit the job of a server's folder, which starts or resumes it."""
        config = ["-c", f"folder={json.dumps(str(folder.resolve()))}"]
        return [flower_program("flwr"), "run", str(self.home / "app"), CONNECTION, *config]

    def prepare_device(self) -> None:
        """Write the command that the SuperNode starts for each message."""
        script = self.home / "bin" / "flwr-clientapp"
        script.parent.mkdir(parents=True, exist_ok=True)
        command = shlex.join([sys.executable, "-m", "fedpbc.deployment.device.client_process"])
        write_atomically(script, f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)

    def prepare_server(self) -> None:
        """Write the connection and the app that Flower's commands expect."""
        (self.home / "app").mkdir(parents=True, exist_ok=True)
        connection: dict[str, object] = {"address": str(self.server)}
        if self.certificates is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str((self.certificates / "ca.crt").resolve())
        superlink = {"default": CONNECTION, CONNECTION: connection}
        write_atomically(self.home / "config.toml", tomli_w.dumps({"superlink": superlink}))
        write_atomically(self.home / "app" / "pyproject.toml", tomli_w.dumps(APP))


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
"""A Flower app that contains no code: server and devices run the installed package's."""


def flower_program(name: str) -> str:
    """Find one of Flower's commands, of the installation of this Python if it is there."""
    require_flower()
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        raise FedpbcError(f"Flower is installed, but its command {name} was not found")
    return path
