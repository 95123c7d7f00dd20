"""A fleet's folder as ``--trace``: its links, and with them its own model, data and rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.trust import check_trust
from fedpbc.storage.files import expanded, is_inside_behind_links

__all__ = ["fleet_values", "links_of"]

TAKEN = ("clients", "plugins", "data", "model", "train")
"""What a comparison has of a fleet; algorithms and seeds are its own."""


def links_of(folder: Path) -> Path:
    """The recorded links in a server's folder, or in that of its whole fleet."""
    for part in ("", "server/"):
        if (folder / part / "fleet.toml").is_file():
            _check_inside(folder, f"{part}fleet.toml")
            if (folder / part / "links.csv").is_file():
                _check_inside(folder, f"{part}links.csv")
                return folder / part / "links.csv"
            expected = "one with links.csv: a server writes it every 100 rounds and at the end"
            raise InputError("--trace", str(folder), expected)
    raise InputError("--trace", str(folder), "a CSV file, or the folder of a fleet's server")


def _check_inside(folder: Path, name: str) -> None:
    """Raise InputError for a link out of a folder that somebody may have sent."""
    if not is_inside_behind_links(folder, name):
        raise InputError(f"--trace: {folder / name} is a link out of its folder, not followed")


def fleet_values(links: Path, given: Mapping[str, Any], *, trust: bool) -> dict[str, Any]:
    """What the ``fleet.toml`` beside recorded links says about model, data and rounds.

    ``given`` are options by key: with a data set or an app of their own, the fleet's is left out.
    """
    from fedpbc.links.trace import fleet_log_settings, trace_extent

    folder = links.parent
    options = read_toml(folder / "fleet.toml")
    values = {key: options[key] for key in TAKEN if key in options}
    fleet = options.get("fleet")
    app = fleet.get("app") if isinstance(fleet, Mapping) else None
    if "task.app" in given or "data.name" in given:
        values = {key: value for key, value in values.items() if key not in ("data", "model")}
    elif isinstance(app, str):
        beside = folder / expanded(app, "fleet.app")
        values["task"] = {"app": str((beside if beside.exists() else Path(app)).resolve())}
        values.pop("data", None)
        values.pop("model", None)
    check_trust(folder, values, trust=trust)
    header = fleet_log_settings(str(links))
    if header is not None:
        # Those that were recorded: a trace that is too short would start again.
        values["rounds"] = max(1, round(trace_extent(str(links))[1] / header[0]))
        # With those that joined while the job was running.
        values["clients"] = header[1]
    return values
