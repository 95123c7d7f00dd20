"""Where a page comes from: date, version, commit and command."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from fedpbc.text import shell_quoted

__all__ = ["Provenance", "commit_of", "provenance"]

SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Provenance:
    """What made a page.

    Attributes:
        date: with the time and its zone.
        time: of day, for a page that is rewritten.
        version: of this package.
        commit: of its source, if it is installed from a repository; or empty.
        command: as it was given to the shell; empty if a program wrote the page.
    """

    date: str
    time: str
    version: str
    commit: str = ""
    command: str = ""


def provenance() -> Provenance:
    """Return what makes a page now.

    Example:
        >>> provenance().version == version("fedpbc")
        True
    """
    now = time.localtime()
    return Provenance(
        date=time.strftime("%Y-%m-%d %H:%M %z", now).strip(),
        time=time.strftime("%H:%M:%S", now),
        version=version("fedpbc"),
        commit=_installed_commit() or commit_of(Path(__file__).resolve().parents[3]),
        command=_command(),
    )


def _command() -> str:
    program, *options = sys.argv or [""]
    return (
        " ".join(map(shell_quoted, ["fedpbc", *options])) if Path(program).name == "fedpbc" else ""
    )


def _installed_commit() -> str:
    """Return the commit that pip installed, if it installed from a repository."""
    try:
        text = distribution("fedpbc").read_text("direct_url.json") or "{}"
        return str(json.loads(text).get("vcs_info", {}).get("commit_id", ""))[:SHOWN_DIGITS]
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return ""


def commit_of(checkout: Path) -> str:
    """Return the commit that a Git checkout is at; empty if it is not one.

    Read from the repository's files: git need not be installed.

    Example:
        >>> commit_of(Path("/nowhere"))
        ''
    """
    try:
        folder = checkout / ".git"
        if folder.is_file():  # A further work tree of the repository.
            folder = checkout / folder.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head[:SHOWN_DIGITS]
        name = head.removeprefix("ref:").strip()
        shared = folder / "commondir"
        common = folder / shared.read_text(encoding="utf-8").strip() if shared.is_file() else folder
        if (common / name).is_file():
            return (common / name).read_text(encoding="utf-8").strip()[:SHOWN_DIGITS]
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line[:SHOWN_DIGITS] for line in packed if line.endswith(f" {name}")), "")
