"""Which code of a fleet's folder may run: that of this user on this machine, or with ``--trust``.

Whoever sends a folder could have put any code there. Three things in it run code: the plugins and
the app that its configuration names, and Flower's own state, whose database can hold apps to be
started. The first two are told by their content, as a run's plugins are. Flower's state is told by
a secret that is made with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.trust import check_trust, is_trusted, remember_plugins
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.files import is_own_file, refuse_links

__all__ = [
    "INCOMPLETE",
    "check_complete",
    "check_device_code",
    "check_plugins",
    "check_server_code",
]

ORIGIN = "origin"
"""The file with the secret, in the folder of Flower's state."""
INCOMPLETE = ".fleet-init"
"""In the folder of a fleet while its parts are moved there: their names, one per line."""


def check_server_code(folder: Path, *, trust: bool = False, starts_flower: bool = True) -> None:
    """Raise an InputError if the code in a server's folder may not run.

    ``starts_flower``: Flower's processes will be started, and not only the app imported.
    """
    check_plugins(folder, trust=trust, app=True)
    if starts_flower:
        check_flower_state(folder, folder / "flower", trust=trust)


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
    check_flower_state(folder, folder / "state" / "flower", trust=trust)


def app_files(section: Mapping[str, Any]) -> list[str]:
    """Return the app of a configuration; a missing one is reported where it is imported."""
    app = section.get("app")
    return [app] if isinstance(app, str) and Path(app).is_file() else []


def check_flower_state(folder: Path, home: Path, *, trust: bool) -> None:
    """Raise an InputError if Flower's state in a folder was not made by this user here."""
    refuse_links(folder)
    origin = home / ORIGIN
    is_new = not home.exists() or not any(home.iterdir())
    if not is_new and not trust:
        if not is_own_file(home, ORIGIN) or not is_trusted(str(origin)):
            raise InputError(
                f"{home} is the state of Flower's processes, but not of those that you have "
                "started on this machine: remove it, or pass --trust if what it holds may run"
            )
        return
    if not is_own_file(home, ORIGIN):
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(origin, secrets.token_hex() + "\n", private=True)
    remember_plugins([str(origin)])


def check_complete(folder: Path) -> None:
    """Raise a FedpbcError for a fleet whose creation was killed."""
    if (folder / INCOMPLETE).exists():
        raise FedpbcError(
            f"{folder} is incomplete: 'fedpbc fleet init' was interrupted; run it again"
        )
