"""Full, failing and read-only disks: one line, the last good state, and a second attempt works."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpbc.deployment.ops import atomic_folder as atomic_folder_module
from fedpbc.deployment.ops.atomic_folder import atomic_folder
from fedpbc.storage import atomic
from tests.commandline import Ended, content, fedpbc, ran, refused

NEW = ("--clients", 2, "--host", "127.0.0.1")


@contextmanager
def failing(monkeypatch, place, name: str, k: int, number: int) -> Iterator[list[int]]:
    """The k-th call of a function of the system fails; yields how many calls there were."""
    calls, original = [0], getattr(place, name)

    def call(*arguments, **options):
        calls[0] += 1
        if calls[0] == k:
            named = [str(arguments[0])] if isinstance(arguments[0], Path) else []
            raise OSError(number, os.strerror(number), *named)
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, call)
        yield calls


FAULTS: dict[str, tuple[object, str, int]] = {
    "full": (Path, "write_bytes", errno.ENOSPC),
    "sync": (os, "fsync", errno.EIO),
    "read-only": (Path, "replace", errno.EROFS),
    "rename": (Path, "rename", errno.EIO),
}


def attempt(monkeypatch, folder: Path, fault: str, run: Callable[[], Ended], reset) -> None:
    """Let the command fail at its first, second, … call, until it gets through."""
    place, name, number = FAULTS[fault]
    k, step = 1, 1
    while True:
        before = content(folder)
        with failing(monkeypatch, place, name, k, number) as calls:
            ended = run()
        if calls[0] < k:
            assert ended.code == 0
            return
        line = refused(ended)
        assert os.strerror(number) in line
        assert str(folder) in line
        reset(before)
        # Every call at first, then fewer: there are many files.
        k, step = k + step, step + (k > 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("existing", [False, True])
def test_init(tmp_path, monkeypatch, fault, existing):
    fleet = tmp_path / "fleet"
    if existing:
        fleet.mkdir()

    def unchanged(before):
        # What was moved into an existing folder is marked as incomplete.
        if not (fleet / ".fleet-init").exists():
            assert content(tmp_path) == before

    attempt(monkeypatch, tmp_path, fault, lambda: fedpbc("fleet", "init", fleet, *NEW), unchanged)
    assert not list(tmp_path.glob(".*"))
    assert not list(fleet.glob(".*"))
    ran("fleet", "status", fleet / "server")
    ran("fleet", "add", fleet)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["add", "replace", "renew"])
def test_add_and_renew(tmp_path, monkeypatch, fault, command):
    fleet = tmp_path / "fleet"
    ran("fleet", "init", fleet, *NEW)
    words = {"add": ("add", fleet), "replace": ("add", fleet, "--replace", 1)}

    def run():
        return fedpbc("fleet", *words.get(command, ("renew", fleet)))

    def good(before):
        """Whatever is there can be used: the files are whole, the keys fit."""
        assert not list(fleet.rglob(".*.tmp"))
        ran("fleet", "status", fleet / "server")

    if fault == "full" and command == "replace":
        pytest.skip("it writes no new file")
    attempt(monkeypatch, tmp_path, fault, run, good)
    clients = 3 if command == "add" else 2
    assert len(list((fleet / "server" / "keys").iterdir())) == clients
    for client in range(clients):
        from fedpbc.deployment.security.keys import public_key_of

        public = (fleet / "server" / "keys" / f"client-{client}.pub").read_bytes()
        private = (fleet / f"device-{client}" / "node.key").read_bytes()
        assert public_key_of(private, f"client-{client}") == public


def test_what_a_killed_init_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / ".fleet.0123abcd.tmp"
    (left / "authority").mkdir(parents=True)
    (left / "authority" / "ca.key").write_text("secret")
    (tmp_path / ".fleets.0123abcd.tmp").mkdir()
    ran("fleet", "init", tmp_path / "fleet", *NEW, "--insecure")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fleets.0123abcd.tmp", "fleet"]


def test_a_folder_that_cannot_be_synced_is_not_there(tmp_path, monkeypatch):
    folder, sync = tmp_path / "fleet", atomic.sync_folder

    def fail(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        sync(path)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_folder_module, "sync_folder", fail)
        with pytest.raises(OSError, match="Input/output error"), atomic_folder(folder) as building:
            (building / "fleet.toml").touch()
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(folder) as building:
        (building / "fleet.toml").touch()
    assert (folder / "fleet.toml").exists()
