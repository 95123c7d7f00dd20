"""What a manifest lists stays in its folder; names that lead elsewhere are ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpbc.storage.manifest import (
    MANIFEST,
    is_folder_name,
    is_inside,
    read_manifest,
    write_manifest,
)
from fedpbc.storage.removal import own_files, remove_empty_folder, remove_files


def test_a_manifest_of_one_kind(tmp_path: Path):
    write_manifest(tmp_path, "run", ["b", "a", "inputs/x.npy"])
    assert read_manifest(tmp_path, "run") == ["a", "b", "inputs/x.npy"]
    assert read_manifest(tmp_path, "comparison") is None
    assert read_manifest(tmp_path / "elsewhere", "run") is None


def test_names_that_lead_out_of_the_folder_are_dropped(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inputs").symlink_to(tmp_path)
    names = ["../mine", "/etc/passwd", "a/../../b", "", "inputs/x", "nul\0", "kept"]
    (folder / MANIFEST).write_text(json.dumps({"fedpbc": "run", "files": names}))
    assert read_manifest(folder, "run") == ["kept"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"fedpbc": "run"}', b'{"fedpbc": "run", "files": [1]}']
)
def test_a_damaged_manifest_is_none(tmp_path: Path, content):
    (tmp_path / MANIFEST).write_bytes(content)
    assert read_manifest(tmp_path, "run") is None


@pytest.mark.parametrize(
    "name", ["../mine", "..", ".", "", "a/b", "a\\b", "a\0", ".x", " x", "x" * 300]
)
def test_what_is_no_folder_name(name):
    assert not is_folder_name(name)


def test_removing_touches_only_files_of_the_folder(tmp_path: Path):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for path in (folder, outside, folder / "sub"):
        path.mkdir()
    for path in (
        outside / "kept",
        folder / "a-1",
        folder / "a-2",
        folder / "b",
        folder / "sub" / "c",
    ):
        path.write_text("x")
    (folder / "a-link").symlink_to(outside / "kept")
    (folder / "linked").symlink_to(outside)
    assert not is_inside(folder, "linked/kept")
    remove_files(folder, ["a-*", "sub", "linked/kept", "../outside/kept", "missing", "sub/c"])
    assert sorted(p.name for p in folder.iterdir()) == ["a-link", "b", "linked", "sub"]
    assert (outside / "kept").read_text() == "x"
    for name in ("sub", "linked", "missing"):
        remove_empty_folder(folder / name)
    assert sorted(p.name for p in folder.iterdir()) == ["a-link", "b", "linked"]
    assert [p.name for p in own_files(folder, ["*"])] == ["b"]
