"""Real file systems that are full or read-only, where the tests may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scenarios import temporary_files

pytestmark = pytest.mark.slow

SIZE = 64 << 20


class Disk:
    """A small disk in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    made.path.mkdir()
    try:
        made.mount(f"size={SIZE}")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("only root may mount a file system, and not in every container")
    yield made
    subprocess.run(["umount", str(made.path)], check=True)


def used(folder: Path) -> int:
    """The space that a folder takes, in whole pages."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "run --overwrite",
        "fleet init",
        "fleet job",
        pytest.param("run with reports on disk", marks=pytest.mark.faults),
        pytest.param("resume", marks=pytest.mark.faults),
        pytest.param("compare", marks=pytest.mark.faults),
    ],
)
def test_a_disk_that_is_full_and_then_has_space_again(fork_server, undisturbed, disk, name):
    scenario, before, whole = undisturbed(name)
    folder = scenario.copied(before, disk.path / "folder")
    more = max((used(whole) - used(before)) // 2, 4 * 4096)
    disk.mount(f"remount,size={used(folder) + more}")
    ended = fork_server.run(*scenario.arguments(folder))
    assert ended.code == 2, ended
    [line] = ended.err.splitlines()
    assert str(folder) in line
    assert "No space left on device" in line
    disk.mount(f"remount,size={SIZE}")
    again = scenario.recover(fork_server, folder)
    assert (again.code, again.err) == (0, "")
    scenario.assert_same(whole, folder)
    assert not temporary_files(folder)


@pytest.mark.parametrize(
    "name",
    [
        "run --overwrite",
        "resume",
        pytest.param("run", marks=pytest.mark.faults),
        pytest.param("compare", marks=pytest.mark.faults),
        pytest.param("report", marks=pytest.mark.faults),
        pytest.param("theory --out", marks=pytest.mark.faults),
        pytest.param("fleet add --replace", marks=pytest.mark.faults),
    ],
)
def test_a_disk_that_is_read_only_and_then_is_not(fork_server, undisturbed, disk, name):
    scenario, before, whole = undisturbed(name)
    folder = scenario.copied(before, disk.path / "folder")
    disk.mount("remount,ro")
    ended = fork_server.run(*scenario.arguments(folder))
    assert ended.code == 2, ended
    [line] = ended.err.splitlines()
    assert str(folder) in line
    assert "Read-only file system" in line
    disk.mount("remount,rw")
    again = scenario.recover(fork_server, folder)
    assert (again.code, again.err) == (0, "")
    scenario.assert_same(whole, folder)
