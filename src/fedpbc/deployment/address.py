"""Where a server is: a host and a port, as ``fleet.example.org:8443`` or ``[2001:db8::1]:8443``.

Imports no torch: a device's settings have an address as well.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from fedpbc.errors import InputError

__all__ = ["HERE", "Address", "check_host", "free_port", "parse_address"]

HERE = "127.0.0.1"
"""This machine, as only its own processes reach it."""
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
HOST = "a host name or an address, as fleet.example.org or 10.0.0.1"
ADDRESS = "host:port, as fleet.example.org:8443 or [2001:db8::1]:8443"


@dataclass(frozen=True)
class Address:
    """A host and a port.

    Attributes:
        host: a name, or an address without brackets.
        port: from 1 to 65535.

    Example:
        >>> print(Address("2001:db8::1", 8443))
        [2001:db8::1]:8443
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all of a machine's addresses: to listen at, not to be reached."""
        return is_everywhere(self.host)


def is_everywhere(host: str) -> bool:
    """Whether a host is 0.0.0.0 or ::."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_host(text: str, option: str) -> str:
    """A host name or an address; one of version 6 loses its brackets.

    Example:
        >>> check_host("[2001:db8::1]", "host")
        '2001:db8::1'
        >>> check_host("10.0.0.256", "host")
        Traceback (most recent call last):
        fedpbc.errors.InputError: host is '10.0.0.256', but should be a host name or an address, \
as fleet.example.org or 10.0.0.1
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_host(bare) or (bare != text and ":" not in bare):
        raise InputError(option, text, HOST)
    return bare


def is_host(text: str) -> bool:
    """Whether it can be looked up, as it stands, and be named in a certificate."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        # A last label of digits is an address that was written wrongly.
        named = all(LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
        return named and len(text) <= 253
    # A zone, as in fe80::1%eth0, means something on one machine only.
    return "%" not in text


def parse_address(text: str, option: str) -> Address:
    """Take ``host:port`` apart; ``option`` is what an error calls it.

    Example:
        >>> parse_address("[2001:db8::1]:8443", "server")
        Address(host='2001:db8::1', port=8443)
        >>> parse_address("fleet.example.org", "server")
        Traceback (most recent call last):
        fedpbc.errors.InputError: server is 'fleet.example.org', but should be host:port, as \
fleet.example.org:8443 or [2001:db8::1]:8443
    """
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise InputError(option, text, ADDRESS)
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if bracketed != (":" in bare) or not is_host(bare):
        raise InputError(option, text, ADDRESS)
    return Address(bare, int(port))


def free_port() -> int:
    """A port of this machine that nobody uses.

    Example:
        >>> 1024 <= free_port() <= 65535
        True
    """
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])
