"""Directories for results: locks, and looking for runs below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.directories import LOCK, folders_below, locked_directory, make_directory
from tests.commandline import fedpbc, refused


def test_a_lock_is_held_once(tmp_path: Path):
    with (
        locked_directory(tmp_path),
        pytest.raises(FedpbcError, match="is in use by another process"),
        locked_directory(tmp_path),
    ):
        pass
    with locked_directory(tmp_path):
        pass


def test_a_lock_that_is_a_folder(tmp_path: Path):
    (tmp_path / LOCK).mkdir()
    with (
        pytest.raises(InputError, match=r"\.lock is not a regular file: remove it"),
        locked_directory(tmp_path),
    ):
        pass


def test_folders_below_in_order_and_without_links(tmp_path: Path):
    for name in ("b", "a/deep", "skipped/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    found = []
    for path, folders, _ in folders_below(tmp_path):
        found.append(str(path.relative_to(tmp_path)))
        folders[:] = [name for name in folders if name != "skipped"]
    assert found == [".", "a", "a/deep", "b"]


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_whole_file_system_is_not_searched(tmp_path: Path, monkeypatch, command):
    monkeypatch.setattr("fedpbc.storage.directories.MAX_FOLDERS", 10)
    for k in range(9):
        (tmp_path / str(k)).mkdir()
    assert "should be one with runs in it" in refused(fedpbc(command, tmp_path))
    (tmp_path / "9").mkdir()
    line = refused(fedpbc(command, tmp_path))
    assert line.startswith(f"folder is '{tmp_path}', but should be one with fewer than 10 folders")


def test_a_path_of_a_thousand_folders_is_refused(tmp_path):
    with pytest.raises(InputError, match="a folder within at most 200 others"):
        make_directory(tmp_path / "/".join("a" * 1500))
    assert list(tmp_path.iterdir()) == []
