"""A whole fleet on this machine: a server and its devices as real processes, over loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.deployment.address import HERE, Address, free_port
from fedpbc.deployment.ops.device_processes import DeviceProcesses
from fedpbc.deployment.ops.fault_proxy import FaultProxy
from fedpbc.deployment.ops.server_processes import ServerProcesses
from fedpbc.deployment.ops.supervisor import Supervisor, to_files
from fedpbc.deployment.security.keys import make_certificates, make_node_key
from fedpbc.deployment.server.directory import read_lines

__all__ = ["LocalFleet"]


class LocalFleet:
    """Makes keys, folders and processes; every device has a link of its own that can be cut.

    In the folder: ``server``, ``device-0`` and so on, and ``logs``. The processes are called
    superlink, door, superexec, trainer-0, supernode-0 and so on.

    Attributes:
        server: the server's folder.
        gates: the devices' links.
        supervisor: keeps all processes.
    """

    def __init__(
        self,
        folder: Path,
        given: Mapping[str, Any],
        *,
        app: Path | None = None,
        insecure: bool = False,
        host: str = HERE,
        within: Callable[[int], Sequence[str]] = lambda client: (),
        device: Mapping[str, Any] | None = None,
    ) -> None:
        """Write all folders, and start nothing yet.

        Args:
            folder: is made.
            given: what ``fleet.toml`` says; with ``clients``.
            app: a file with one's own model and data.
            insecure: no encryption, and no keys.
            host: the address of this machine that devices come to. If it is another than loopback,
                there are no gates: devices have links of their own.
            within: put before a client's SuperNode's command, as ``ip netns exec NAME``.
            device: what ``device.toml`` says beside the client's number and the server.
        """
        self.folder, self.server, self.insecure = folder, folder / "server", insecure
        self.clients = int(given["clients"])
        listen = Address(host, free_port())
        self._within = within
        self.server.mkdir(parents=True)
        fleet = {**given.get("fleet", {}), "listen": str(listen)}
        self.gates = [FaultProxy(listen) for _ in range(self.clients)] if host == HERE else []
        if not insecure:
            make_certificates(self.server / "certificates", [host])
        if app is not None:
            shutil.copy(app, self.server / "app.py")
            fleet["app"] = "app.py"
        (self.server / "fleet.toml").write_text(tomli_w.dumps({**given, "fleet": fleet}))
        for client in range(self.clients):
            reached = self.gates[client].address if self.gates else listen
            self._write_device(client, reached, {} if device is None else device)
        self.supervisor = Supervisor(to_files(folder / "logs"))
        try:
            self.server_side = ServerProcesses(self.server, self.supervisor, insecure=insecure)
            self.device_sides = [self.device_side(client) for client in range(self.clients)]
        except BaseException:
            self.close()
            raise

    def device_folder(self, client: int) -> Path:
        """A device's folder."""
        return self.folder / f"device-{client}"

    def _write_device(self, client: int, server: Address, given: Mapping[str, Any]) -> None:
        place = self.device_folder(client)
        place.mkdir()
        told = {"client": client, "server": str(server), **given}
        if (self.server / "app.py").exists():
            shutil.copy(self.server / "app.py", place / "app.py")
            told["app"] = "app.py"
        (place / "device.toml").write_text(tomli_w.dumps(told))
        if not self.insecure:
            shutil.copy(self.server / "certificates" / "ca.crt", place / "ca.crt")
            make_node_key(place, "node.key")
            (self.server / "keys").mkdir(exist_ok=True)
            known = self.server / "keys" / f"client-{client}.pub"
            (place / "node.key.pub").replace(known)

    def device_side(self, client: int) -> DeviceProcesses:
        """A device's part."""
        return DeviceProcesses(
            self.device_folder(client),
            self.supervisor,
            insecure=self.insecure,
            called=f"-{client}",
            within=self._within(client),
        )

    def start(self) -> None:
        """Start all processes, and the job."""
        self.server_side.start()
        for device in self.device_sides:
            device.start()

    def tend(self) -> bool:
        """To be called every second or so; gives whether the job is done."""
        return self.server_side.tend()

    def lines(self) -> list[dict[str, Any]]:
        """The server's log of rounds so far."""
        return list(read_lines(self.server / "rounds.jsonl"))

    def answers(self, client: int) -> list[dict[str, Any]]:
        """A trainer's log of answers so far."""
        place = self.device_folder(client) / "state" / "answers.jsonl"
        text = place.read_text(encoding="utf-8") if place.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]

    def close(self) -> None:
        """End all processes; the folder stays."""
        self.supervisor.close()
        for gate in self.gates:
            gate.close()

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
