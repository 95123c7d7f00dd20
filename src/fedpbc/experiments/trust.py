"""Which plugins and apps this user has run on this machine.

A run's directory holds copies of its plugins, and the path of an app; resuming it imports them.
Whoever sends a directory could have put any code there. So the checksum of every plugin and app
that the user names is remembered, and one of a directory that is not among them is only imported
with ``--trust``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpbc.errors import InputError
from fedpbc.storage.files import expanded, read_regular_file
from fedpbc.storage.manifest import MANIFEST

__all__ = ["check_trust", "is_of_results", "is_trusted", "remember_plugins", "trusted_plugins_path"]

_remembered: set[str] = set()
"""Those of this process: the file may not be writable."""


def trusted_plugins_path() -> Path:
    """The file with the checksums of the plugins that were run, one per line."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else _home() / ".local" / "state"
    return folder / "fedpbc" / "trusted-plugins"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # No home directory is known.
        return Path("/nonexistent")


def is_of_results(folder: Path) -> bool:
    """Whether a folder is that of a run or a comparison, and not one where people write files."""
    results = (
        "metrics.jsonl",
        "summary.json",
        "final.safetensors",
        "fleet.safetensors",
        "comparison.json",
        "tuning.json",
        "advice.json",
    )
    # A link counts, wherever it leads.
    return any(os.path.lexists(folder / name) for name in (MANIFEST, *results))


def remember_plugins(files: Iterable[str | Path]) -> None:
    """Remember plugins and apps that the user named: their copies may be imported later.

    A text is what somebody wrote, with ``~`` for a home; a path is that of a file.
    """
    checksums = {_checksum(file) for file in files}
    new = sorted(checksums - _known())
    _remembered.update(checksums)
    if not new:
        return
    path = trusted_plugins_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write("".join(f"{checksum}\n" for checksum in new))
    except OSError:
        # Without a home directory, say: then --trust is needed to resume.
        return


def check_trust(folder: Path, values: Mapping[str, Any], *, trust: bool = False) -> None:
    """Raise unless the plugins and the app that a directory's configuration names may be run."""
    plugins, task = values.get("plugins"), values.get("task")
    files = [file for file in plugins if isinstance(file, str)] if isinstance(plugins, list) else []
    kinds = ["a plugin"] * len(files)
    if isinstance(task, Mapping) and isinstance(task.get("app"), str):
        files, kinds = [*files, task["app"]], [*kinds, "an app"]
    if trust:
        remember_plugins(files)
        return
    known = _known()
    for file, kind in zip(files, kinds, strict=True):
        if _checksum(file) not in known:
            raise InputError(
                f"{folder} has {kind} that you have not run on this machine: read {file}, and "
                "pass --trust (trust=True in Python) if its code may run"
            )


def is_trusted(file: str | Path) -> bool:
    """Whether a file has the content of one that was remembered."""
    return _checksum(file) in _known()


def _known() -> set[str]:
    try:
        text = read_regular_file(trusted_plugins_path(), 1 << 26).decode("ascii", "replace")
    except OSError:
        text = ""
    return {*text.split(), *_remembered}


def _checksum(file: str | Path) -> str:
    path = file if isinstance(file, Path) else expanded(file, "code")
    try:
        return sha256(read_regular_file(path, 1 << 26)).hexdigest()
    except OSError as error:
        raise InputError("code", str(file), f"a Python file ({error.strerror})") from None
