"""Unix sockets: where they are, and who may open them."""

from __future__ import annotations

import os
import stat

import pytest

from fedpbc.deployment import sockets
from fedpbc.deployment.sockets import LONGEST_PATH, socket_for
from fedpbc.errors import InputError


@pytest.fixture
def short(tmp_path, monkeypatch):
    """A stand-in for /tmp, and no XDG_RUNTIME_DIR."""
    monkeypatch.setattr(sockets, "TEMPORARY", tmp_path)
    monkeypatch.setattr(sockets, "LONGEST_PATH", len(os.fsencode(tmp_path)) + 60)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


@pytest.fixture
def long(short):
    """A state folder whose path is too long for a socket."""
    return short / ("s" * LONGEST_PATH)


def test_a_short_path_is_beside_the_state(short):
    assert socket_for(short / "state", "trainer") == short / "state" / "trainer"
    assert not list(short.iterdir())


def test_a_long_path_is_replaced_by_one_in_a_private_folder(short, long):
    before = os.umask(0)
    try:
        path = socket_for(long, "trainer")
    finally:
        os.umask(before)
    assert path.parent == short / f"fedpbc-{os.getuid()}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # Stable across restarts, and different for another device.
    assert socket_for(long, "trainer") == path
    assert socket_for(long / "other", "trainer") != path


def test_a_folder_that_others_can_enter_is_refused(short, long):
    (short / f"fedpbc-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(
        InputError, match=r"folder of the sockets, should .*closed to others \(mode 700\)"
    ):
        socket_for(long, "trainer")


def test_a_folder_of_another_user_is_refused(short, long, monkeypatch):
    theirs = short / "fedpbc-4711"
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    with pytest.raises(InputError, match="should belong to this user"):
        socket_for(long, "trainer")


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_link_or_file_is_refused(short, long, what):
    path = short / f"fedpbc-{os.getuid()}"
    if what == "file":
        path.touch(mode=0o600)
    else:
        (short / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(short / "elsewhere")
    with pytest.raises(InputError, match="should belong to this user"):
        socket_for(long, "trainer")


def test_xdg_runtime_dir_is_used_if_it_is_private(short, long, monkeypatch):
    session = short / "run"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert socket_for(long, "trainer").parent == session
    session.chmod(0o755)
    assert socket_for(long, "trainer").parent == short / f"fedpbc-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short / "gone"))
    assert socket_for(long, "trainer").parent == short / f"fedpbc-{os.getuid()}"


def test_a_socket_is_open_to_its_user_or_also_to_the_group(tmp_path):
    for for_group, mode in ((False, 0o600), (True, 0o660)):
        with sockets.bound_socket(tmp_path / "s", for_group=for_group):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode


def test_what_is_no_socket_is_not_replaced(tmp_path):
    (tmp_path / "s").write_text("mine")
    with pytest.raises(InputError, match="a path where nothing is but an earlier socket"):
        sockets.bound_socket(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "mine"
