"""Two launchers in one folder: the second gets one line, and changes nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.errors import InputError
from tests.commandline import content, fedpbc, ran, refused


@pytest.mark.parametrize(("role", "name"), [("server", "server"), ("device", "device-0")])
def test_the_second_launcher_is_refused(tmp_path, role, name):
    ran("fleet", "init", tmp_path / "f", "--clients", 1, "--host", "localhost", "--rounds", 1)
    folder = tmp_path / "f" / name
    with only_launcher(role, folder):
        before = content(folder)
        line = refused(fedpbc("fleet", role, folder, "--trust"))
        assert f"a {role} is already running in {folder}" in line
        assert "stop it first, or take another folder" in line
        assert content(folder) == before


def test_a_lock_is_released(tmp_path):
    for _ in range(2):
        with only_launcher("server", tmp_path):
            pass
    with (
        only_launcher("server", tmp_path),
        pytest.raises(InputError, match="a server is already running"),
        only_launcher("server", tmp_path),
    ):
        pass
