"""Where a device's client app and trainer meet."""

from __future__ import annotations

import os
import stat

import pytest

from fedpbc.deployment.device.trainer_socket import LONGEST_PATH
from fedpbc.deployment.ops import device_processes as device_side
from fedpbc.deployment.ops.device_processes import socket_for
from fedpbc.errors import InputError


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Short names for what is somewhere else; nothing of this user's own session."""
    monkeypatch.setattr(device_side, "TEMPORARY", tmp_path)
    monkeypatch.setattr(device_side, "LONGEST_PATH", len(os.fsencode(tmp_path)) + 60)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


@pytest.fixture
def long(short):
    """A device's state with a name that is too long for a socket."""
    return short / ("s" * LONGEST_PATH)


def test_it_is_beside_the_state_if_that_has_a_short_name(short):
    assert socket_for(short / "state") == short / "state" / "trainer"
    assert not list(short.iterdir())


def test_otherwise_it_is_in_a_folder_that_nobody_else_can_enter(short, long):
    before = os.umask(0)
    try:
        place = socket_for(long)
    finally:
        os.umask(before)
    assert place.parent == short / f"fedpbc-{os.getuid()}"
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    # The same after a restart, and another for another device.
    assert socket_for(long) == place
    assert socket_for(long / "other") != place


def test_a_folder_that_others_can_enter_is_refused(short, long):
    (short / f"fedpbc-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(InputError, match=r"socket's folder is .*closed to others \(mode 700\)"):
        socket_for(long)


def test_a_folder_of_somebody_elses_is_refused(short, long, monkeypatch):
    theirs = short / "fedpbc-4711"
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    with pytest.raises(InputError, match="this user's own and"):
        socket_for(long)


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_is_no_folder_is_refused(short, long, what):
    place = short / f"fedpbc-{os.getuid()}"
    if what == "file":
        place.touch(mode=0o600)
    else:
        (short / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(short / "elsewhere")
    with pytest.raises(InputError, match="this user's own and"):
        socket_for(long)


def test_the_sessions_own_folder_is_taken_if_it_is_private(short, long, monkeypatch):
    session = short / "run"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert socket_for(long).parent == session
    session.chmod(0o755)
    assert socket_for(long).parent == short / f"fedpbc-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short / "gone"))
    assert socket_for(long).parent == short / f"fedpbc-{os.getuid()}"
