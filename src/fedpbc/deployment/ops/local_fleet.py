"""A whole fleet on this machine: real server and device processes, over loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.deployment.address import LOOPBACK, Address, free_port
from fedpbc.deployment.ops.device_processes import DeviceProcesses
from fedpbc.deployment.ops.fault_proxy import FaultProxy
from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.deployment.ops.server_processes import ServerProcesses
from fedpbc.deployment.ops.supervisor import Supervisor, log_to_files
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.server.round_log import read_rounds
from fedpbc.storage.atomic import write_atomically

__all__ = ["LocalFleet"]


class LocalFleet:
    """A server and its devices, each behind a proxy that can cut its link.

    Its folder contains ``server``, ``device-0`` and so on, and ``logs``. The processes are
    gateway, server, trainer-0, node-0 and so on.
    """

    def __init__(
        self,
        folder: Path,
        configuration: Mapping[str, Any],
        *,
        app: Path | None = None,
        insecure: bool = False,
        host: str = LOOPBACK,
        device_options: Mapping[str, Any] | None = None,
        command_prefix: Callable[[int], Sequence[str]] = lambda client: (),
    ) -> None:
        """Write all folders; nothing is started yet.

        Args:
            folder: is created.
            configuration: the content of ``fleet.toml``, with ``clients``.
            app: a Python file with a user's model and data.
            host: the address of this machine to which devices connect; there are proxies on
                loopback only.
            device_options: content of ``device.toml`` in addition to client, server and app.
            command_prefix: put before a client's node command, as ``ip netns exec NAME``.
        """
        self.folder, self.server, self._insecure = folder, folder / "server", insecure
        self.clients = int(configuration["clients"])
        listen = Address(host, free_port())
        self.server.mkdir(parents=True)
        self._lock = ExitStack()
        self._lock.enter_context(only_launcher("server", self.server))
        fleet = {**configuration.get("fleet", {}), "listen": str(listen)}
        # The same files on all sides.
        plugins = [str(Path(file).resolve()) for file in configuration.get("plugins") or ()]
        self._plugins = {"plugins": plugins} if plugins else {}
        self.proxies = [FaultProxy(listen) for _ in range(self.clients)] if host == LOOPBACK else []
        if not insecure:
            make_certificates(self.server / "certificates", [host])
        if app is not None:
            shutil.copy(app, self.server / "app.py")
            fleet["app"] = "app.py"
        content = tomli_w.dumps({**configuration, **self._plugins, "fleet": fleet})
        write_atomically(self.server / "fleet.toml", content)
        for client in range(self.clients):
            address = self.proxies[client].address if self.proxies else listen
            self._write_device(client, address, device_options or {})
        self.supervisor = Supervisor(log_to_files(folder / "logs"))
        try:
            self.server_processes = ServerProcesses(self.server, self.supervisor, insecure=insecure)
            self.device_processes = [
                DeviceProcesses(
                    self.device_folder(client),
                    self.supervisor,
                    insecure=insecure,
                    name_suffix=f"-{client}",
                    command_prefix=command_prefix(client),
                )
                for client in range(self.clients)
            ]
        except BaseException:
            self.close()
            raise

    def device_folder(self, client: int) -> Path:
        """Return a device's folder."""
        return self.folder / f"device-{client}"

    def _write_device(self, client: int, server: Address, options: Mapping[str, Any]) -> None:
        folder = self.device_folder(client)
        folder.mkdir()
        settings = {"client": client, "server": str(server), **self._plugins, **options}
        if (self.server / "app.py").exists():
            shutil.copy(self.server / "app.py", folder / "app.py")
            settings["app"] = "app.py"
        write_atomically(folder / "device.toml", tomli_w.dumps(settings))
        if not self._insecure:
            shutil.copy(self.server / "certificates" / "ca.crt", folder / "ca.crt")
            make_node_key(folder, "node.key")
            (self.server / "keys").mkdir(exist_ok=True)
            (folder / "node.key.pub").replace(self.server / "keys" / f"client-{client}.pub")

    def start(self) -> None:
        """Start all processes and the job."""
        self.server_processes.start()
        for device in self.device_processes:
            device.start()

    def step(self) -> bool:
        """Supervise the job; to be called about once per second. Returns whether it is done."""
        return self.server_processes.step()

    def lines(self) -> list[dict[str, Any]]:
        """Return the server's log of rounds."""
        return [line for _, line in read_rounds(self.server)]

    def close(self) -> None:
        """End all processes; the folder stays."""
        self.supervisor.close()
        for proxy in self.proxies:
            proxy.close()
        self._lock.close()

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
