"""Where a command works: its folder, and what to say when it is interrupted."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_folder", "working", "working_in"]


working: list[tuple[Path, str]] = []


def working_in(path: Path, going_on: str | None = None) -> None:
    """Training begins: remember the folder, for what is said when the command is interrupted."""
    from fedpbc.engines.malloc import keep_freed_memory

    keep_freed_memory()
    working[:] = [(path, going_on or f"'fedpbc resume {path}' goes on")]


def free_folder(parent: Path, name: str) -> Path:
    """A folder that is not there yet."""
    path, k = parent / name, 2
    while path.exists():
        path, k = parent / f"{name}-{k}", k + 1
    return path
