from __future__ import annotations

import fcntl
import os
import stat

import pytest

from fedpbc.storage.atomic import write_atomically


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    place = tmp_path / "a.txt"
    write_atomically(place, "old")

    def half(path):
        path.write_text("ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(place, half)
    assert place.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_rename_leaves_the_old_file(tmp_path, monkeypatch):
    place = tmp_path / "a.txt"
    write_atomically(place, b"old")

    def fails(self, target):
        raise OSError("no")

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="no"):
        write_atomically(place, "new")
    assert place.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    seen = []
    place = tmp_path / "a.txt"
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda h: (seen.append(place.exists()), sync(h)))
    write_atomically(place, "new")
    # The file while it has no name yet, then the folder with the name in it.
    assert seen == [False, True]


def test_files_may_be_read_by_whom_the_user_allows(tmp_path):
    place, usual = tmp_path / "a.txt", tmp_path / "usual.txt"

    def private(path):
        path.touch(mode=0o600)

    write_atomically(place, private)
    usual.touch()
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_private_file_is_its_owners_only(tmp_path):
    place, modes = tmp_path / "node.key", []
    (tmp_path / f".node.key.{os.getpid()}.tmp").touch(mode=0o644)  # a killed process left it

    def write(path):
        modes.append(stat.S_IMODE(path.stat().st_mode))
        path.write_bytes(b"whole")

    for content in (write, b"whole"):
        write_atomically(place, content, private=True)
        assert place.read_bytes() == b"whole"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert modes == [0o600]
    assert [p.name for p in tmp_path.iterdir()] == ["node.key"]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    place = tmp_path / "a.txt"
    (tmp_path / ".a.txt.999.tmp").write_text("half")
    others = {".a.txt.9x.tmp", ".b.txt.999.tmp", "a.txt.999.tmp", ".a.txt.7.tmp"}
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    (tmp_path / ".a.txt.8.tmp").symlink_to(tmp_path / ".b.txt.999.tmp")
    with (tmp_path / ".a.txt.7.tmp").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        write_atomically(place, "new")
    left = {p.name for p in tmp_path.iterdir()}
    assert left == others | {"a.txt", ".a.txt.8.tmp"}
    assert (tmp_path / ".b.txt.999.tmp").read_text() == "of somebody else"
