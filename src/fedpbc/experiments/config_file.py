"""Reading a configuration file: one that somebody wrote, or one in a folder of results.

Whoever writes a configuration may name files anywhere. A folder of results contains its inputs, and
somebody may have sent it: what its configuration names is a file in it, behind no link.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.settings import FILES, PLACES
from fedpbc.storage.files import expanded
from fedpbc.storage.manifest import is_inside
from fedpbc.storage.toml import parsed_toml

__all__ = ["read_own_toml", "read_toml"]

Find = Callable[[str, str], Path]
"""The file that an option names, by the name and the option."""


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; files that it names are looked up beside it, then here."""
    values = parsed_toml(path)

    def find(name: str, option: str) -> Path:
        return _beside(path, name, option)

    _find_files(values, find, find)
    return values


def read_own_toml(path: Path) -> dict[str, Any]:
    """The configuration or plan in a folder of results; files that it names lie in that folder.

    Only a data set and an app may be elsewhere: they are never copied, and an app needs trust.
    """
    values = parsed_toml(path, follow_links=False)
    folder = path.parent

    def find(name: str, option: str) -> Path:
        if not is_inside(folder, name):
            expected = f"a file in {folder}, behind no link: what a run wrote names no others"
            raise InputError(option, name, expected)
        return (folder / name).resolve()

    _find_files(values, find, lambda name, option: _beside(path, name, option))
    return values


def _find_files(tables: Any, find_file: Find, find_place: Find) -> None:
    """Replace the files that tables name, however deep: entries, sweeps and candidates have some.

    A sweep has a list of files for an option.
    """
    if isinstance(tables, list):
        for table in tables:
            _find_files(table, find_file, find_place)
    if not isinstance(tables, dict):
        return
    for table in tables.values():
        _find_files(table, find_file, find_place)
    for find, options in ((find_file, FILES), (find_place, PLACES)):
        for section, option in options:
            nested = tables.get(section)
            if isinstance(nested, dict):
                _replace(nested, option, f"{section}.{option}", find)
            _replace(tables, f"{section}.{option}", f"{section}.{option}", find)
    plugins = tables.get("plugins")
    if isinstance(plugins, list):
        _replace(tables, "plugins", "plugins", find_file)


def _replace(table: dict[str, Any], key: str, option: str, find: Find) -> None:
    value = table.get(key)
    if isinstance(value, str):
        table[key] = str(find(value, option))
    elif isinstance(value, list):
        table[key] = [str(find(each, option)) if isinstance(each, str) else each for each in value]


def _beside(config: Path, name: str, option: str) -> Path:
    path = expanded(name, option)
    beside = config.parent / path
    return (beside if beside.exists() or not path.exists() else path).resolve()
