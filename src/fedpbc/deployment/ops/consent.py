"""Which code of a fleet's folder may run: that of this user on this machine, or with ``--trust``.

Whoever sends a folder could have put any code there. What runs is the plugins and the app that its
configuration names; they are told by their content, as a run's plugins are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError
from fedpbc.experiments.trust import check_trust
from fedpbc.storage.files import refuse_links

__all__ = [
    "INCOMPLETE",
    "check_complete",
    "check_device_code",
    "check_plugins",
    "check_server_code",
]

INCOMPLETE = ".fleet-init"
"""In the folder of a fleet while its parts are moved there: their names, one per line."""


def check_server_code(folder: Path, *, trust: bool = False) -> None:
    """Raise an InputError if the code in a server's folder may not run."""
    check_plugins(folder, trust=trust, app=True)
    refuse_links(folder)


def check_plugins(folder: Path, *, trust: bool = False, app: bool = False) -> None:
    """Raise an InputError if the plugins, and the app, of a ``fleet.toml`` may not be imported."""
    # Late, since it imports torch.
    from fedpbc.deployment.settings import fleet_options

    options = fleet_options(folder / "fleet.toml")
    plugins = options.get("plugins")
    files = list(plugins) if isinstance(plugins, list) else []
    section = options.get("fleet")
    if app and isinstance(section, Mapping):
        files += app_files(section)
    check_trust(folder, {"plugins": files}, trust=trust)


def check_device_code(folder: Path, *, trust: bool = False) -> None:
    """Raise an InputError if the code in a device's folder may not run."""
    from fedpbc.deployment.device.settings import read_device

    settings = read_device(folder / "device.toml")
    files = [*(settings.plugins or ()), *app_files({"app": settings.app})]
    check_trust(folder, {"plugins": files}, trust=trust)
    refuse_links(folder)


def app_files(section: Mapping[str, Any]) -> list[str]:
    """Return the app of a configuration; a missing one is reported where it is imported."""
    app = section.get("app")
    return [app] if isinstance(app, str) and Path(app).is_file() else []


def check_complete(folder: Path) -> None:
    """Raise a FedpbcError for a fleet whose creation was killed."""
    if (folder / INCOMPLETE).exists():
        raise FedpbcError(
            f"{folder} is incomplete: 'fedpbc fleet init' was interrupted; run it again"
        )
