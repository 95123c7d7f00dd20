"""A device's configuration, ``device.toml``; how to train comes from the server.

Imports no torch: the device's launcher does not train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from fedpbc.deployment.address import Address, parse_address
from fedpbc.errors import InputError
from fedpbc.options import checked
from fedpbc.storage.toml import parsed_toml

__all__ = ["DeviceSettings", "read_device"]


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """What only the device knows.

    Attributes:
        client: which client it is, from 0.
        server: the server's address, ``host:port``.
        app: a Python file with the user's model and data, the same as the server's.
        data_dir: the folder of a data set's Parquet files.
        catch_up: train missed rounds as they pass ("clock"), or on the next request ("lazy").
        device: where to train: cpu, cuda, …

    Example:
        >>> DeviceSettings(client=3, server="fleet.example.org:8443").address.port
        8443
    """

    client: int
    server: str
    app: Path | None = None
    data_dir: Path | None = None
    catch_up: Literal["clock", "lazy"] = "clock"
    device: str = "cpu"

    @property
    def address(self) -> Address:
        """The server's address."""
        return parse_address(self.server, "server")


def _options(
    *,
    client: Annotated[int, Ge(0)],
    server: str,
    app: str | None = None,
    data_dir: str | None = None,
    catch_up: Literal["clock", "lazy"] = "clock",
    device: str = "cpu",
) -> None:
    """The options of the file, for :func:`checked`."""


def read_device(path: Path) -> DeviceSettings:
    """Read a TOML file; paths in it are relative to the file."""
    options = checked(_options, parsed_toml(path))
    server = parse_address(options["server"], "server")
    if server.is_everywhere:
        raise InputError("server", options["server"], "the server's address as the device sees it")
    app, data_dir = _resolved(path, options["app"]), _resolved(path, options["data_dir"])
    if app is not None and not app.is_file():
        raise InputError("app", options["app"], f"a Python file that exists in {path.parent}")
    if data_dir is not None and not data_dir.is_dir():
        raise InputError("data_dir", options["data_dir"], "a folder that exists")
    return DeviceSettings(**{**options, "server": str(server), "app": app, "data_dir": data_dir})


def _resolved(path: Path, name: str | None) -> Path | None:
    return None if name is None else (path.parent / Path(name).expanduser()).resolve()
