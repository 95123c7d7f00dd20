"""A device's processes: the trainer, and the SuperNode that passes messages to it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from fedpbc.deployment.address import free_port, parse_address
from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.device.trainer_socket import LONGEST_PATH
from fedpbc.deployment.ops.flower_commands import FlowerCommands, require_flower
from fedpbc.deployment.ops.supervisor import Supervisor
from fedpbc.errors import InputError

__all__ = ["DeviceProcesses"]

TEMPORARY = Path("/tmp")
"""Holds the socket if the device's folder has a long path; only root may rename it."""


class DeviceProcesses:
    """Keeps one device's processes running."""

    def __init__(
        self,
        folder: Path,
        supervisor: Supervisor,
        *,
        insecure: bool = False,
        name_suffix: str = "",
        command_prefix: Sequence[str] = (),
    ) -> None:
        """Check ``device.toml``, ``ca.crt`` and ``node.key``; nothing is started yet.

        Where one supervisor runs many devices, ``name_suffix`` tells their processes apart, and
        ``command_prefix``, such as ``ip netns exec NAME``, runs a SuperNode elsewhere.
        """
        require_flower()
        self.folder, self.supervisor = folder.resolve(), supervisor
        self._name_suffix, self._command_prefix = name_suffix, command_prefix
        self.settings = read_device(folder / "device.toml")
        self._key = None if insecure else self.folder / "node.key"
        if self._key is not None and not self._key.is_file():
            expected = "a folder with ca.crt and node.key; or use --insecure"
            raise InputError("folder", str(folder), expected)
        self.state = self.folder / "state"
        server = parse_address(self.settings.server, "server")
        certificates = None if insecure else self.folder
        self._commands = FlowerCommands(self.state / "flower", server, certificates, insecure)
        self.socket = socket_for(self.state)
        self._port = free_port()

    def start(self) -> None:
        """Start the trainer and the SuperNode."""
        self.state.mkdir(parents=True, exist_ok=True)
        self._commands.prepare_device()
        supernode = self._commands.supernode(self.socket, self._port, self._key)
        environment, suffix = self._commands.environment(), self._name_suffix
        self.supervisor.start(f"trainer{suffix}", self._trainer_command(), environment)
        command = [*self._command_prefix, *supernode]
        self.supervisor.start(f"supernode{suffix}", command, environment)

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
        return [sys.executable, "-m", "fedpbc.cli.app", "trainer", *options]


def socket_for(state: Path) -> Path:
    """Return the trainer's socket: beside its state if the path is short enough."""
    path = state / "trainer"
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    name = f"fedpbc-{sha256(os.fsencode(path)).hexdigest()[:16]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and is_private(Path(runtime)):
        path = Path(runtime, name)
        if len(os.fsencode(path)) <= LONGEST_PATH:
            return path
    return private_folder() / name


def private_folder() -> Path:
    """Create a folder with a short path, in which no other user can create a socket first."""
    folder = TEMPORARY / f"fedpbc-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise InputError(
            f"{folder}, the folder of the trainer's socket, should belong to this user and be "
            "closed to others (mode 700): remove it, or give the device's folder a shorter path"
        )
    return folder


def is_private(folder: Path) -> bool:
    """Return whether it is a folder of this user that no one else can enter."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_ours and not stat.S_IMODE(status.st_mode) & 0o077
