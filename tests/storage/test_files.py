"""Files are read only if they are regular, bounded, and not behind a link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedpbc.storage.files import append_line, is_own_file, read_own_file, read_regular_file


def test_a_regular_file(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"content")
    assert read_regular_file(tmp_path / "a") == b"content"
    assert read_own_file(tmp_path, "a") == b"content"
    assert is_own_file(tmp_path, "a")


def test_a_pipe_does_not_block(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular_file(tmp_path / "pipe")
    assert not is_own_file(tmp_path, "pipe")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", ".", "a\0b", "missing"])
def test_what_is_no_file(path):
    with pytest.raises(OSError, match=r"\S"):
        read_regular_file(Path(path))


def test_a_file_beyond_the_limit(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_regular_file(tmp_path / "a", 3)


def test_links_inside_a_folder_are_not_followed(tmp_path: Path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "inputs").symlink_to(outside)
    for name in ("link", "inputs/secret", "../outside/secret"):
        assert not is_own_file(folder, name)
        with pytest.raises(OSError, match="link"):
            read_own_file(folder, name)
    # The folder itself may be reached by a link.
    (tmp_path / "shortcut").symlink_to(folder)
    (folder / "own").write_text("own")
    assert read_own_file(tmp_path / "shortcut", "own") == b"own"


def test_a_log_that_takes_nothing_more_is_named(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    append_line(path, "one")

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match=f"Read-only file system: '{path}'"):
            append_line(path, "two")
    assert path.read_text() == "one\n"
