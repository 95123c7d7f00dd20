"""Machines of a network on this one: Linux network namespaces on a bridge of their own.

Nothing of it is visible outside: the bridge is in a namespace, too. Only root may make them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

__all__ = ["Host", "network"]

SUBNET = "10.77.0"
INTERFACE = "eth0"


@dataclass(frozen=True)
class Host:
    """A namespace with one interface.

    Attributes:
        namespace: its name.
        address: its IP address.
    """

    namespace: str
    address: str

    def command(self, *words: object) -> list[str]:
        """A command that runs there."""
        return ["ip", "netns", "exec", self.namespace, *map(str, words)]

    def bytes(self, way: str) -> int:
        """How many bytes its interface has received (``rx``) or sent (``tx``), headers included."""
        file = f"/sys/class/net/{INTERFACE}/statistics/{way}_bytes"
        # Mounted anew by `ip netns exec`: the file is that of the namespace.
        return int(subprocess.check_output(self.command("cat", file)))

    def cut(self) -> None:
        """Take its link down: to the others it is gone, and nothing tells them."""
        run("ip", "-n", self.namespace, "link", "set", INTERFACE, "down")


@contextmanager
def network(names: Sequence[str], prefix: str = "fedpbc") -> Iterator[list[Host]]:
    """Hosts of these names that reach each other, and nothing else."""
    with ExitStack() as stack:
        bridge = namespace(stack, f"{prefix}-bridge")
        run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        hosts = []
        for number, name in enumerate(names, start=1):
            host = Host(namespace(stack, f"{prefix}-{name}"), f"{SUBNET}.{number}")
            port = f"port{number}"
            peer = ["peer", "name", port, "netns", bridge]
            add = ["ip", "-n", host.namespace, "link", "add", INTERFACE, "type", "veth"]
            run(*add, *peer)
            run("ip", "-n", bridge, "link", "set", port, "master", "br0", "up")
            address = f"{host.address}/24"
            run("ip", "-n", host.namespace, "address", "add", address, "dev", INTERFACE)
            run("ip", "-n", host.namespace, "link", "set", INTERFACE, "up")
            hosts.append(host)
        yield hosts


def namespace(stack: ExitStack, name: str) -> str:
    """Make a namespace, which is removed at the end."""
    run("ip", "netns", "add", name)
    stack.callback(run, "ip", "netns", "delete", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    return name


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)
