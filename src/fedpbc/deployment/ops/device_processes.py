"""A device's processes: the trainer, and the SuperNode that takes messages to it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from fedpbc.deployment.address import free_port
from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.device.trainer_socket import LONGEST_PATH
from fedpbc.deployment.ops.launch import Launch, need_flower
from fedpbc.deployment.ops.supervisor import Supervisor
from fedpbc.errors import InputError

__all__ = ["DeviceProcesses"]

TEMPORARY = Path("/tmp")
"""Where sockets are whose folder has a long name, and is nobody's but root's to rename."""


class DeviceProcesses:
    """Keeps one device's part of a fleet running."""

    def __init__(
        self,
        folder: Path,
        supervisor: Supervisor,
        *,
        insecure: bool = False,
        called: str = "",
        within: Sequence[str] = (),
    ) -> None:
        """Check everything, and start nothing yet.

        Args:
            folder: with ``device.toml``, ``ca.crt`` and ``node.key``.
            supervisor: keeps the processes.
            insecure: no encryption, and no key.
            called: put behind the processes' names, where one supervisor has several devices.
            within: put before the SuperNode's command, as ``ip netns exec NAME``.
        """
        need_flower()
        self.folder, self.supervisor, self.called = folder.resolve(), supervisor, called
        self._within = list(within)
        self.settings = read_device(folder / "device.toml")
        server = self.settings.address
        self._key = None
        if not insecure:
            self._key = self.folder / "node.key"
            if not self._key.is_file():
                right = "a folder with ca.crt and node.key, or say --insecure"
                raise InputError("folder", str(folder), right)
        certificates = None if insecure else self.folder
        home = self.folder / "state" / "flower"
        self.launch = Launch(home, server.host, server.port, certificates, insecure)
        self.state = self.folder / "state"
        self.socket = socket_for(self.state)
        self._port = free_port()

    def start(self) -> None:
        """Start both."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.launch.prepare_device()
        environment = self.launch.environment()
        self.supervisor.start(f"trainer{self.called}", self._trainer(), environment)
        node = self.launch.supernode(self.socket, self._port, self._key)
        name = f"supernode{self.called}"
        self.supervisor.start(name, [*self._within, *node], environment)

    def _trainer(self) -> list[str]:
        given = self.settings
        own = ["--client", str(given.client), "--state", str(self.state)]
        own += ["--socket", str(self.socket), "--catch-up", given.catch_up]
        own += ["--device", given.device]
        if given.app is not None:
            own += ["--app", str(given.app)]
        if given.data_dir is not None:
            own += ["--data-dir", str(given.data_dir)]
        return [sys.executable, "-m", "fedpbc.cli.app", "trainer", *own]


def socket_for(state: Path) -> Path:
    """Where client app and trainer meet: beside the state, if that has a short enough name."""
    place = state / "trainer"
    if len(os.fsencode(place)) <= LONGEST_PATH:
        return place
    name = f"fedpbc-{sha256(os.fsencode(place)).hexdigest()[:16]}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and is_private(Path(runtime)):
        short = Path(runtime, name)
        if len(os.fsencode(short)) <= LONGEST_PATH:
            return short
    return private_folder() / name


def private_folder() -> Path:
    """A folder with a short name, in which nobody else can put a socket before us."""
    folder = TEMPORARY / f"fedpbc-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        right = (
            "this user's own and closed to others (mode 700): remove it, or give the device's "
            "folder a shorter name"
        )
        raise InputError("the socket's folder", str(folder), right)
    return folder


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user's, and nobody else can enter it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and not stat.S_IMODE(found.st_mode) & 0o077
