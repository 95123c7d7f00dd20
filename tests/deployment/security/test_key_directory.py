"""A folder of keys, while files in it come, go, and are only half there."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_node_key


@pytest.fixture
def folder(tmp_path):
    for client in (0, 1):
        make_node_key(tmp_path, f"client-{client}")
    return tmp_path


@pytest.fixture
def known(folder):
    known = KeyDirectory(folder)
    assert sorted(known.now().values()) == ["client-0", "client-1"]
    return known


def test_files_that_come_and_go(folder, known):
    before = known.now()
    away = (folder / "client-1.pub").rename(folder / "away")
    assert list(known.now().values()) == ["client-0"]
    away.rename(folder / "client-1.pub")
    make_node_key(folder, "client-2")
    after = known.now()
    assert sorted(after.values()) == ["client-0", "client-1", "client-2"]
    assert before.items() <= after.items()


@pytest.mark.parametrize("wrong", ["half", "nonsense", "folder", "unknown kind"])
def test_a_file_that_cannot_be_read_shuts_nobody_out(folder, known, caplog, wrong):
    before, place = known.now(), folder / "client-1.pub"
    whole = place.read_bytes()
    if wrong == "folder":
        place.unlink()
        place.mkdir()
    else:
        kind = b"ssh-strange " + whole.split()[1]
        place.write_bytes(
            {"half": whole[:90], "nonsense": b"nonsense", "unknown kind": kind}[wrong]
        )
    # The rest is taken up.
    make_node_key(folder, "client-2")
    for _ in range(3):
        now = known.now()
        assert before.items() <= now.items()
        assert "client-2" in now.values()
    [line] = caplog.messages
    assert line.startswith("client-1.pub: its device's last key stays: ")
    if wrong != "folder":
        place.write_bytes(whole)
        assert known.now() == now
        place.unlink()
        assert "client-1" not in known.now().values()


def test_only_what_changed_is_read_again(folder, monkeypatch):
    read = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or whole(path))
    known = KeyDirectory(folder)
    before = known.now()
    # As long as a file is new it may be changed without looking different.
    known.now()
    assert sorted(read) == ["client-0.pub", "client-0.pub", "client-1.pub", "client-1.pub"]
    monkeypatch.setattr("fedpbc.deployment.security.key_directory.time.time", lambda: time() + 2)
    known.now()
    read.clear()
    assert known.now() == before
    assert not read
    make_node_key(folder, "client-1")
    assert len(known.now().keys() - before.keys()) == 1
    assert read == ["client-1.pub"]


def test_a_file_that_never_was_right_is_left_out(folder, known, caplog):
    (folder / "client-2.pub").write_text("nonsense")
    assert sorted(known.now().values()) == ["client-0", "client-1"]
    [line] = caplog.messages
    assert line.startswith("client-2.pub: it is left out: ValueError")


def test_an_empty_file_is_nobodys_but_not_while_it_is_being_copied(folder, known, caplog):
    place = folder / "client-1.pub"
    place.write_bytes(b"")
    assert "client-1" in known.now().values()
    assert not caplog.messages
    os.utime(place, (1e9, 1e9))
    assert "client-1" not in known.now().values()
    assert "client-1" not in known.now().values()
    assert caplog.messages == ["client-1.pub: it is empty: nobody has its key"]


def test_a_folder_that_is_away_for_a_moment(folder, known, caplog):
    before = known.now()
    moved = folder.rename(folder.with_name("moved"))
    assert known.now() == known.now() == before
    [line] = caplog.messages
    assert "those that were known stay" in line
    moved.rename(folder)
    (folder / "client-0.pub").unlink()
    assert list(known.now().values()) == ["client-1"]
