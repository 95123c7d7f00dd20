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
    for section, option in (*FILES, *PLACES):
        table = values.get(section)
        if isinstance(table, dict) and isinstance(table.get(option), str):
            table[option] = str(_beside(path, table[option], f"{section}.{option}"))
    plugins = values.get("plugins")
    if isinstance(plugins, list):
        values["plugins"] = [
            str(_beside(path, p, "plugins")) if isinstance(p, str) else p for p in plugins
        ]
    return values


def _beside(config: Path, name: str, option: str) -> Path:
    path = expanded(name, option)
    beside = config.parent / path
    return (beside if beside.exists() or not path.exists() else path).resolve()
