"""The folder of keys while its files are added, deleted and partly written."""

from __future__ import annotations

import os
from base64 import b64decode
from pathlib import Path
from time import time

import pytest

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.security.key_directory import KeyDirectory
from fedpbc.deployment.security.keys import make_node_key
from fedpbc.deployment.security.node_identity import node_number
from fedpbc.deployment.security.pinned_nodes import clients_before, write_pinned


@pytest.fixture
def folder(tmp_path):
    for client in (0, 1):
        make_node_key(tmp_path, f"client-{client}")
    return tmp_path


@pytest.fixture
def keys(folder):
    keys = KeyDirectory(folder)
    assert sorted(keys.names_by_key().values()) == ["client-0", "client-1"]
    return keys


def test_added_and_deleted_files(folder, keys):
    before = keys.names_by_key()
    away = (folder / "client-1.pub").rename(folder / "away")
    assert list(keys.names_by_key().values()) == ["client-0"]
    away.rename(folder / "client-1.pub")
    make_node_key(folder, "client-2")
    after = keys.names_by_key()
    assert sorted(after.values()) == ["client-0", "client-1", "client-2"]
    assert before.items() <= after.items()


@pytest.mark.parametrize("wrong", ["half", "nonsense", "folder", "unknown kind"])
def test_an_unreadable_file_revokes_no_key(folder, keys, caplog, wrong):
    before, path = keys.names_by_key(), folder / "client-1.pub"
    content = path.read_bytes()
    if wrong == "folder":
        path.unlink()
        path.mkdir()
    else:
        kind = b"ssh-strange " + content.split()[1]
        path.write_bytes(
            {"half": content[:90], "nonsense": b"nonsense", "unknown kind": kind}[wrong]
        )
    # The other files are read.
    make_node_key(folder, "client-2")
    for _ in range(3):
        now = keys.names_by_key()
        assert before.items() <= now.items()
        assert "client-2" in now.values()
    [line] = caplog.messages
    assert line.startswith("client-1.pub: the device's last key stays valid: ")
    if wrong != "folder":
        path.write_bytes(content)
        assert keys.names_by_key() == now
        path.unlink()
        assert "client-1" not in keys.names_by_key().values()


def test_only_changed_files_are_read_again(folder, monkeypatch):
    read = []
    monkeypatch.setattr(
        "fedpbc.deployment.security.key_directory.read_inside",
        lambda folder, name, limit: read.append(name) or (folder / name).read_bytes(),
    )
    keys = KeyDirectory(folder)
    before = keys.names_by_key()
    # A new file could change again without a new time stamp, so it is read again.
    keys.names_by_key()
    assert sorted(read) == ["client-0.pub", "client-0.pub", "client-1.pub", "client-1.pub"]
    monkeypatch.setattr("fedpbc.deployment.security.key_directory.time.time", lambda: time() + 2)
    keys.names_by_key()
    read.clear()
    assert keys.names_by_key() == before
    assert not read
    make_node_key(folder, "client-1")
    assert len(keys.names_by_key().keys() - before.keys()) == 1
    assert read == ["client-1.pub"]


def test_a_file_that_was_never_valid_is_ignored(folder, keys, caplog):
    (folder / "client-2.pub").write_text("nonsense")
    assert sorted(keys.names_by_key().values()) == ["client-0", "client-1"]
    [line] = caplog.messages
    assert line.startswith("client-2.pub: ignored: ValueError")


def test_an_empty_file_is_ignored_unless_it_may_be_being_copied(folder, keys, caplog):
    path = folder / "client-1.pub"
    path.write_bytes(b"")
    assert "client-1" in keys.names_by_key().values()
    assert not caplog.messages
    os.utime(path, (1e9, 1e9))
    assert "client-1" not in keys.names_by_key().values()
    assert "client-1" not in keys.names_by_key().values()
    assert caplog.messages == ["client-1.pub: ignored, the file is empty"]


def test_a_folder_that_is_briefly_missing(folder, keys, caplog):
    before = keys.names_by_key()
    moved = folder.rename(folder.with_name("moved"))
    assert keys.names_by_key() == keys.names_by_key() == before
    [line] = caplog.messages
    assert "the last known keys stay valid" in line
    moved.rename(folder)
    (folder / "client-0.pub").unlink()
    assert list(keys.names_by_key().values()) == ["client-1"]


@pytest.mark.parametrize("kind", ["pipe", "link", "circle", "large"])
def test_only_regular_files_of_the_folder_are_read(folder, keys, tmp_path_factory, caplog, kind):
    """A pipe would block the gateway; what a link leads to belongs to somebody else."""
    elsewhere = make_node_key(tmp_path_factory.mktemp("elsewhere"), "other").with_suffix(".pub")
    path = folder / "client-7.pub"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(elsewhere.read_bytes() + bytes(10**6))
    else:
        path.symlink_to(elsewhere if kind == "link" else path)
    assert sorted(keys.names_by_key().values()) == ["client-0", "client-1"]
    assert caplog.messages[0].startswith("client-7.pub: ignored: OSError: ")


def test_a_link_inside_the_folder_is_followed(folder, keys):
    """As where a folder of secrets is mounted."""
    (folder / ".data").mkdir()
    (folder / "client-1.pub").rename(folder / ".data" / "key")
    (folder / "client-1.pub").symlink_to(Path(".data", "key"))
    assert sorted(keys.names_by_key().values()) == ["client-0", "client-1"]


def test_one_key_under_two_names_keeps_its_first(tmp_path, caplog):
    make_node_key(tmp_path, "client-3")
    directory = KeyDirectory(tmp_path)
    [(key, name)] = directory.names_by_key().items()
    (tmp_path / "client-1.pub").write_bytes((tmp_path / "client-3.pub").read_bytes())
    for _ in range(3):
        assert directory.names_by_key() == {key: name} == {key: "client-3"}
    assert caplog.messages == ["client-1.pub: ignored, it has the same key as client-3.pub"]


def test_one_key_under_two_names_keeps_its_client_after_a_restart(tmp_path, caplog):
    keys = tmp_path / "keys"
    make_node_key(keys, "client-3")
    [(key, _)] = KeyDirectory(keys).names_by_key().items()
    write_pinned(tmp_path, {node_number(b64decode(key)): 3})
    for name in ("client-1.pub", "mine.pub"):
        (keys / name).write_bytes((keys / "client-3.pub").read_bytes())
    after = KeyDirectory(keys, clients_before(tmp_path))
    assert after.names_by_key() == {key: "client-3"}
    assert caplog.messages == [
        f"{name}.pub: ignored, it has the same key as client-3.pub" for name in ("client-1", "mine")
    ]
    # Once the file is deleted, the key is free for another name.
    (keys / "client-3.pub").unlink()
    assert after.names_by_key() == {key: "client-1"}


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"pinned": [1]}', b'{"pinned": {"a": 1}}'])
def test_without_a_record_the_first_by_name_has_the_key(tmp_path, content):
    keys = tmp_path / "keys"
    make_node_key(keys, "client-3")
    (keys / "client-1.pub").write_bytes((keys / "client-3.pub").read_bytes())
    if content is not None:
        (tmp_path / "nodes.json").write_bytes(content)
    names = KeyDirectory(keys, clients_before(tmp_path)).names_by_key().values()
    assert list(names) == ["client-1"]
