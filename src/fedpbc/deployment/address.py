"""Network addresses: a host and a port, as ``fleet.example.org:8443`` or ``[2001:db8::1]:8443``.

Imports no torch: the device's launcher uses them, too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from fedpbc.errors import InputError

__all__ = [
    "LOOPBACK",
    "Address",
    "check_host",
    "free_port",
    "is_loopback",
    "is_unspecified",
    "parse_address",
]

LOOPBACK = "127.0.0.1"
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
HOST = "a host name or an address, as fleet.example.org or 10.0.0.1"
ADDRESS = "host:port, as fleet.example.org:8443 or [2001:db8::1]:8443"


@dataclass(frozen=True)
class Address:
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_unspecified(host: str) -> bool:
    """Whether a host is 0.0.0.0 or ::, where a server can listen but no device can connect."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach itself under that name.

    Example:
        >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("10.0.0.1")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_host(text: str, option: str) -> str:
    """Check a host name or IP address; an IPv6 address loses its brackets."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_host(host) or (host != text and ":" not in host):
        raise InputError(option, text, HOST)
    return host


def is_host(text: str) -> bool:
    """Whether it can be resolved as it is, and be named in a certificate."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        # A last label of digits means a mistyped IPv4 address.
        is_name = all(LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
        return is_name and len(text) <= 253
    # A zone, as in fe80::1%eth0, is valid on one machine only.
    return "%" not in text


def parse_address(text: str, option: str) -> Address:
    """Parse ``host:port``; errors name ``option``."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise InputError(option, text, ADDRESS)
    has_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if has_brackets else host
    if has_brackets != (":" in host) or not is_host(host):
        raise InputError(option, text, ADDRESS)
    return Address(host, int(port))


def free_port() -> int:
    """Find an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
