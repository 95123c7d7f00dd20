"""A device's processes: the trainer, and the node that brings it the server's messages."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpbc.deployment.address import parse_address
from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.ops.flower_check import require_flower
from fedpbc.deployment.ops.supervisor import Supervisor, User, end_of_output
from fedpbc.deployment.sockets import socket_for
from fedpbc.errors import FedpbcError, InputError

__all__ = ["DeviceProcesses"]

WRONG_INPUT = 2
"""The exit code of a trainer that would fail again."""
COMPLAINT = "fedpbc: "
"""How the line begins in which a command says why it ends."""


class DeviceProcesses:
    """Keeps one device's processes running."""

    def __init__(
        self,
        folder: Path,
        supervisor: Supervisor,
        *,
        insecure: bool = False,
        user: str | None = None,
        name_suffix: str = "",
        command_prefix: Sequence[str] = (),
    ) -> None:
        """Check ``device.toml``, ``ca.crt`` and ``node.key``; nothing is started yet.

        With ``user``, which needs root, the trainer and with it the app run as that user, and the
        node as the owner of ``node.key``. Where one supervisor runs many devices, ``name_suffix``
        tells their processes apart, and ``command_prefix``, such as ``ip netns exec NAME``, runs a
        node elsewhere.
        """
        require_flower()
        self.folder, self.supervisor = folder.resolve(), supervisor
        self._name_suffix, self._command_prefix = name_suffix, command_prefix
        self.settings = read_device(folder / "device.toml")
        self._server = parse_address(self.settings.server, "server")
        self._key = None if insecure else self.folder / "node.key"
        if self._key is not None and not (self._key.is_file() and self._ca.is_file()):
            expected = "a folder with ca.crt and node.key; or use --insecure"
            raise InputError("folder", str(folder), expected)
        self.state = self.folder / "state"
        self._users = None if user is None else Users.of(user, self._key or folder)
        self.socket = socket_for(self.state, "trainer")
        if self._users is not None and self.socket.parent != self.state:
            raise InputError("folder", str(folder), "a shorter path, with --user")

    @property
    def _ca(self) -> Path:
        return self.folder / "ca.crt"

    def start(self) -> None:
        """Start the trainer and the node."""
        self.state.mkdir(parents=True, exist_ok=True)
        app = node = None
        if self._users is not None:
            self._users.hand_over(self.state)
            app, node = self._users.app, self._users.node
        suffix = self._name_suffix
        self.supervisor.start(f"trainer{suffix}", self._trainer_command(), user=app)
        command = [*self._command_prefix, *self._node_command()]
        self.supervisor.start(f"node{suffix}", command, user=node)

    def step(self) -> None:
        """Raise a FedpbcError if the trainer would fail again; to be called every second."""
        trainer = self.supervisor.service(f"trainer{self._name_suffix}")
        last = trainer.last_output[-1] if trainer.last_output else ""
        # The line arrives a little after the exit code.
        if trainer.exit_code == WRONG_INPUT and last.startswith(COMPLAINT):
            reason = end_of_output(last.removeprefix(COMPLAINT))
            raise FedpbcError(f"the trainer cannot go on: {reason}")

    def _node_command(self) -> list[str]:
        options = ["--server", str(self._server), "--trainer", str(self.socket)]
        if self._key is not None:
            options += ["--key", str(self._key), "--ca", str(self._ca)]
        if self._users is not None:
            options += ["--trainer-user", str(self._users.app.number)]
        return [sys.executable, "-m", "fedpbc.deployment.device.node_process", *options]

    def _trainer_command(self) -> list[str]:
        settings = self.settings
        options = ["--client", str(settings.client), "--state", str(self.state)]
        options += ["--socket", str(self.socket), "--catch-up", settings.catch_up]
        options += ["--device", settings.device]
        if settings.app is not None:
            options += ["--app", settings.app]
        for plugin in settings.plugins or ():
            options += ["--plugin", plugin]
        if settings.data_dir is not None:
            options += ["--data-dir", settings.data_dir]
        if self._users is not None:
            options += ["--for-group"]
        return [sys.executable, "-m", "fedpbc.cli.app", "trainer", *options]


@dataclass(frozen=True)
class Users:
    """The two users of a device: as one of them the app runs, the other has the key.

    The app's processes have the group of the node, so that the node can open the trainer's socket.
    """

    app: User
    node: User

    @classmethod
    def of(cls, name: str, key: Path) -> Users:
        """Look up the app's user, and the owner of the key; an InputError if they do not do."""
        if os.getuid() != 0:
            raise InputError("user", name, "left out, unless the command is started as root")
        try:
            app = pwd.getpwnam(name).pw_uid
        except KeyError:
            raise InputError("user", name, "a user of this machine") from None
        status = key.stat()
        if status.st_uid == app:
            raise InputError("user", name, f"another user than the owner of {key}")
        if app == 0:
            raise InputError("user", name, "another user than root")
        if status.st_mode & 0o077 and key.is_file():
            raise InputError(f"{key} should be closed to other users: chmod 600 {key}")
        try:
            group = pwd.getpwuid(status.st_uid).pw_gid
        except KeyError:
            raise InputError(f"{key} should belong to a user of this machine") from None
        return cls(User(app, group), User(status.st_uid, group))

    def hand_over(self, state: Path) -> None:
        """Give the trainer's folder to the app's user; the node's group may pass through it."""
        # Once: nothing that the app's user may have put there since is touched as root.
        if state.stat().st_uid == self.app.number:
            return
        for folder, folders, files in os.walk(state):
            for name in (*folders, *files):
                os.chown(Path(folder, name), self.app.number, self.app.group, follow_symlinks=False)
        os.chown(state, self.app.number, self.app.group, follow_symlinks=False)
        state.chmod(0o710)
