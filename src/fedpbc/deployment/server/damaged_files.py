"""Files of a job's state that are damaged: they are moved aside, never overwritten or deleted."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["move_aside"]

LOG = logging.getLogger("fedpbc.deployment")


def move_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to the first free of ``NAME.damaged``, ``NAME.damaged-2``, …"""
    number, aside = 1, path.with_name(f"{path.name}.damaged")
    while aside.exists() or aside.is_symlink():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        LOG.warning("%s is missing: %s", path.name, reason)
    else:
        LOG.warning("%s is damaged, and now %s: %s", path.name, aside.name, reason)
