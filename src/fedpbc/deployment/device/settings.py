"""A device's configuration, ``device.toml``; how to train comes from the server.

Imports no torch: the device's launcher does not train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from fedpbc.deployment.address import is_unspecified, parse_address
from fedpbc.errors import InputError
from fedpbc.options import checked
from fedpbc.storage.files import expanded
from fedpbc.storage.toml import parsed_toml

__all__ = ["DeviceSettings", "read_device"]


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """What only the device knows.

    Attributes:
        client: which client it is, from 0.
        server: the server's address, ``host:port``.
        app: a Python file with the user's model and data, the same as the server's.
        plugins: Python files with the server's algorithm, if it is not built in and has a rule for
            clients.
        data_dir: the folder of a data set's Parquet files.
        catch_up: train missed rounds as they pass ("clock"), or on the next request ("lazy").
        device: where to train: cpu, cuda, …
    """

    client: Annotated[int, Ge(0)]
    server: str
    app: str | None = None
    plugins: list[str] | None = None
    data_dir: str | None = None
    catch_up: Literal["clock", "lazy"] = "clock"
    device: str = "cpu"


def read_device(path: Path) -> DeviceSettings:
    """Read a TOML file; paths in it are relative to the file."""
    options = checked(DeviceSettings, parsed_toml(path))
    server = parse_address(options["server"], "server")
    if is_unspecified(server.host):
        raise InputError("server", options["server"], "the server's address as the device sees it")
    for name, exists, expected in (
        ("app", Path.is_file, f"a Python file that exists in {path.parent}"),
        ("data_dir", Path.is_dir, "a folder that exists"),
    ):
        if options[name] is not None:
            resolved = (path.parent / expanded(options[name], name)).resolve()
            if not exists(resolved):
                raise InputError(name, options[name], expected)
            options[name] = str(resolved)
    if options["plugins"] is not None:
        options["plugins"] = [_plugin(path.parent, file) for file in options["plugins"]]
    return DeviceSettings(**{**options, "server": str(server)})


def _plugin(folder: Path, name: str) -> str:
    resolved = (folder / expanded(name, "plugins")).resolve()
    if not resolved.is_file():
        raise InputError("plugins", name, f"Python files that exist in {folder}")
    return str(resolved)
