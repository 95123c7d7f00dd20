"""The plan of a comparison, a search or advice on disk: with its inputs, and checksums of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from fedpbc.errors import one_line
from fedpbc.experiments.integrity import Damage
from fedpbc.experiments.run_directory import RunDirectory, write_inputs
from fedpbc.limits import parse_toml
from fedpbc.storage.atomic import temporary_names, write_atomically
from fedpbc.storage.directories import LOCK
from fedpbc.storage.files import read_own_file
from fedpbc.storage.manifest import (
    MANIFEST,
    changed_files,
    has_checksums,
    is_inside,
    write_manifest,
)
from fedpbc.storage.removal import remove_empty_folder, remove_files

__all__ = [
    "START_AGAIN",
    "clear_runs",
    "misplaced_files",
    "misplaced_folders",
    "plan_damage",
    "refuse_busy_runs",
    "runs_below",
    "unreadable_plan",
    "write_plan",
]

CHANGED = "it is not as it was written"
START_AGAIN = "start again with --overwrite"


def write_plan(
    folder: Path,
    kind: str,
    name: str,
    text: str,
    inputs: Mapping[str, bytes],
    files: Iterable[str],
) -> None:
    """Write a plan and the files that it names, and list them with checksums in the manifest.

    ``files`` are others that belong to the folder, which is locked. Nothing is written if the plan
    is there.
    """
    path, contents = folder / name, {f"inputs/{n}": content for n, content in inputs.items()}
    contents[name] = text.encode()
    listed = [*contents, *files]
    # Of a command that was killed when its plan was to take this one's place.
    remove_files(folder, [temporary_names(name), temporary_names(MANIFEST)])
    if not path.is_file() or path.read_bytes() != text.encode():
        # Without checksums first: a kill must not make a half-written plan look damaged.
        write_manifest(folder, kind, listed)
        write_inputs(folder, inputs)
        write_atomically(path, text)
    elif has_checksums(folder, kind, contents):
        return  # It goes on; the inputs were compared before.
    checksums = {name: sha256(content).hexdigest() for name, content in contents.items()}
    write_manifest(folder, kind, listed, checksums)


def plan_damage(folder: Path, kind: str, plan: str, otherwise: str = START_AGAIN) -> list[Damage]:
    """The files with checksums in a folder's manifest that are not as they were written.

    What is neither the ``plan`` nor an input is a result, which resuming makes again. ``otherwise``
    is what to do if the plan cannot be restored.
    """
    damage = []
    for name in changed_files(folder, kind):
        is_result = name != plan and not name.startswith("inputs/")
        reason = CHANGED if is_result else f"{CHANGED}; restore it, or {otherwise}"
        damage.append(Damage(folder / name, reason, repairable=is_result))
    return damage


def unreadable_plan(folder: Path, plan: str, otherwise: str = START_AGAIN) -> list[Damage]:
    """What is wrong with a plan that has no checksum, or one that somebody made fit."""
    try:
        parse_toml(read_own_file(folder, plan).decode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except ValueError as error:
        reason = f"it is not valid TOML: {one_line(error)}"
    else:
        return []
    return [Damage(folder / plan, f"{reason}; restore it, or {otherwise}", repairable=False)]


def misplaced_folders(folder: Path, names: Iterable[str]) -> list[Damage]:
    """Links in place of the inputs, or on the way to one of these folders."""
    parts = dict.fromkeys(
        "/".join(name.split("/")[: k + 1]) for name in names for k in range(name.count("/") + 1)
    )
    reason = "it is a link, which is not followed; remove it"
    paths = [folder / name for name in ("inputs", *parts)]
    return [Damage(path, reason, repairable=False) for path in paths if path.is_symlink()]


def misplaced_files(folder: Path, names: Iterable[str]) -> list[Damage]:
    """Entries that should be regular files or locks and are not."""
    paths = [folder / name for name in (*names, LOCK)]
    return [
        Damage(path, "it is not a regular file; remove it", repairable=False)
        for path in paths
        if path.is_symlink() or (path.exists() and not path.is_file())
    ]


def clear_runs(root: Path, runs: Sequence[RunDirectory]) -> None:
    """Remove what runs wrote, and folders up to the root that are empty then; all or nothing."""
    refuse_busy_runs(runs)
    for run in runs:
        if not run.path.is_dir():
            continue
        with run.locked():
            run.clear()
        remove_files(run.path, [LOCK])
        for folder in (run.path, *run.path.parents):
            if folder == root:
                break
            remove_empty_folder(folder)


def refuse_busy_runs(runs: Sequence[RunDirectory]) -> None:
    """Raise if somebody works on one of the runs, or its lock is not a regular file."""
    for run in runs:
        if run.path.is_dir():
            with run.locked():
                continue


def runs_below(folder: Path, pattern: str) -> list[RunDirectory]:
    """The runs in a folder whose plan is lost; links are not followed."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))]
    runs = [RunDirectory(folder / name) for name in names if is_inside(folder, name)]
    return [run for run in runs if run.holds_run]
