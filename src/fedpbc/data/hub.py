"""Where the files of a data set are: in a folder of the user, or in the hub's cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpbc.data.parquet import find_shards
from fedpbc.errors import FedpbcError, InputError, MissingExtraError

__all__ = ["download", "split_files"]

SUBFOLDERS = ("", "data", "default")
"""Where a repository has its files if it is not said: the hub's usual places."""


def download(name: str, repository: str, patterns: Sequence[str]) -> Path:
    """Return the folder of the hub's cache that has those files of a repository."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(f"downloading {name}", "hub") from error
    try:
        folder = huggingface_hub.snapshot_download(
            repository, repo_type="dataset", allow_patterns=list(patterns)
        )
        return Path(folder)
    except Exception as error:  # network errors have many types
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise FedpbcError(
            f"{name} cannot be downloaded from the hub's {repository} ({reason}): "
            "check the connection, or name a folder of its Parquet files with --data-dir"
        ) from error


def split_files(
    root: Path, repository: str, config: str | None, splits: Sequence[str], what: str = "images"
) -> dict[str, list[Path]]:
    """Return the Parquet files of each split that has some.

    ``root`` may hold the hub's repositories, one of them, or the files themselves. ``config`` None:
    the repository's usual folders are tried. The first split must be there.
    """
    if not root.is_dir():
        raise InputError("data.dir", str(root), "an existing folder")
    subfolders = SUBFOLDERS if config is None else (config,)
    places = [root / repository / each for each in subfolders] if repository else []
    places += [root / each for each in subfolders]
    for folder in dict.fromkeys([*places, root]):
        shards = {split: find_shards(folder, split, root) for split in splits}
        if any(shards.values()):
            break
    for split in splits[:1]:
        if not shards[split]:
            pattern = "/".join(filter(None, [repository, config or "", f"{split}-*.parquet"]))
            raise InputError(f"data.dir: {root} has no {split} {what}; it should have {pattern}")
    return {split: files for split, files in shards.items() if files}
