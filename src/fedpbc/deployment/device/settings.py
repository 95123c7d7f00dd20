"""A device's own configuration, ``device.toml``; how to train is the server's to say.

Imports no torch: what starts a device's processes does not train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
        server: where the server is, ``host:port``.
        app: a Python file with one's own model and data, the same as the server's.
        data_dir: the folder of a data set's Parquet files.
        catch_up: train missed rounds as they pass («clock»), or only when asked again («lazy»).
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
        """Where the server is."""
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
    """What may stand in the file."""


def read_device(path: Path) -> DeviceSettings:
    """From a TOML file; files that it names are beside it, unless it names them in full."""
    given = checked(_options, parsed_toml(path))
    server = parse_address(given["server"], "server")
    if server.is_everywhere:
        raise InputError("server", given["server"], "where the server is, as seen from the device")
    app, data_dir = _named(path, given["app"]), _named(path, given["data_dir"])
    if app is not None and not app.is_file():
        raise InputError("app", given["app"], f"a Python file that exists in {path.parent}")
    if data_dir is not None and not data_dir.is_dir():
        raise InputError("data_dir", given["data_dir"], "a folder that exists")
    own: dict[str, Any] = {"server": str(server), "app": app, "data_dir": data_dir}
    return DeviceSettings(**{**given, **own})


def _named(path: Path, named: str | None) -> Path | None:
    return None if named is None else (path.parent / Path(named).expanduser()).resolve()
