"""Reading a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpbc.experiments.settings import FILES, PLACES
from fedpbc.storage.files import expanded
from fedpbc.storage.toml import parsed_toml

__all__ = ["read_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; files that it names are looked up beside it, then here."""
    values = parsed_toml(path)
    _find_files(path, values)
    entries = values.get("algorithms")
    tables = list(entries.values()) if isinstance(entries, dict) else entries
    for entry in tables if isinstance(tables, list) else ():
        if isinstance(entry, dict):
            _find_files(path, entry)
    sweep = values.get("sweep")
    if isinstance(sweep, dict):
        _find_files(path, sweep)
    plugins = values.get("plugins")
    if isinstance(plugins, list):
        values["plugins"] = [
            str(_beside(path, p, "plugins")) if isinstance(p, str) else p for p in plugins
        ]
    return values


def _find_files(config: Path, tables: dict[str, Any]) -> None:
    """Replace the files that sections name; in a sweep, an option has a list of them."""
    for section, option in (*FILES, *PLACES):
        nested = tables.get(section)
        is_table = isinstance(nested, dict)
        table: Any = nested if is_table else tables
        key = option if is_table else f"{section}.{option}"
        value = table.get(key)
        if isinstance(value, str):
            table[key] = str(_beside(config, value, f"{section}.{option}"))
        elif isinstance(value, list):
            table[key] = [
                str(_beside(config, each, f"{section}.{option}")) if isinstance(each, str) else each
                for each in value
            ]


def _beside(config: Path, name: str, option: str) -> Path:
    path = expanded(name, option)
    beside = config.parent / path
    return (beside if beside.exists() or not path.exists() else path).resolve()
