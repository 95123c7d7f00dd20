"""Replace the run in a directory by a new one, which begins beside it.

The new run starts in the folder ``.next`` of the earlier one and takes its place when its first
round is done. Until then, whatever goes wrong leaves the earlier run as it was. A kill while files
are moved is recovered from: a mark says how far it came.

ready     the new run has completed its first round; the earlier one is being removed
moving    the earlier run is gone; the new one's files are being moved
"""

from __future__ import annotations

from pathlib import Path

from fedpbc.experiments.run_directory import STAGING, RunDirectory
from fedpbc.storage.atomic import sync_folder, temporary_names, write_atomically
from fedpbc.storage.directories import LOCK
from fedpbc.storage.manifest import MANIFEST
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files

__all__ = ["discard_staged", "recover_run", "staged_run", "take_place"]

READY, MOVING = "ready", "moving"


def staged_run(path: Path) -> RunDirectory:
    """The directory in which a run begins that replaces the one in ``path``."""
    return RunDirectory(path / STAGING)


def recover_run(path: Path) -> None:
    """Complete a replacement that was killed, or drop a run that did not get so far."""
    staged = staged_run(path)
    if not staged.path.is_dir() or staged.path.is_symlink():
        return
    directory = RunDirectory(path)
    directory.check_folders()
    with directory.locked():
        if any(own_files(staged.path, [READY, MOVING])):
            take_place(path)
        elif staged.path.is_dir():
            discard_staged(path)


def discard_staged(path: Path) -> None:
    """Remove a run that was to replace the one in ``path``, unless it is doing so already.

    Then the earlier run may be gone in part: :func:`recover_run` completes the replacement.
    """
    staged = staged_run(path)
    if any(own_files(staged.path, [READY, MOVING])):
        return
    staged.clear()
    remove_files(staged.path, [LOCK, temporary_names(READY), temporary_names(MANIFEST)])
    remove_empty_folder(staged.path)


def take_place(path: Path) -> None:
    """Remove the run in ``path``, and move the staged one there."""
    staged = staged_run(path)
    names = staged.files()
    if names is None and not _is_moved(staged.path):
        return  # A folder of the user's that has this name.
    if not any(own_files(staged.path, [MOVING])):
        write_atomically(staged.path / READY, "")
        RunDirectory(path).clear()
        (staged.path / READY).replace(staged.path / MOVING)
        sync_folder(staged.path)
    # In their order: the manifest, by which the staged run is recognised, comes last.
    for file in own_files(staged.path, names or ()):
        name = file.relative_to(staged.path)
        (path / name).parent.mkdir(exist_ok=True)
        file.replace(path / name)
    for folder in ("inputs", "tensorboard"):
        remove_empty_folder(staged.path / folder)
    sync_folder(path)
    remove_files(staged.path, [LOCK, MOVING])
    remove_empty_folder(staged.path)


def _is_moved(staging: Path) -> bool:
    """Whether everything but the marks was moved."""
    return {entry.name for entry in staging.iterdir()} <= {MOVING, LOCK}
