from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedpbc.storage.scratch import scratch_folder
from tests.processes import child, wait_until

WAITS = """
import time
from fedpbc.storage.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "inside").mkdir()
    print(folder, flush=True)
    time.sleep(600)
"""


def test_it_is_empty_private_and_removed_with_what_is_in_it():
    with scratch_folder() as folder:
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_it_is_removed_after_an_error():
    with pytest.raises(KeyError), scratch_folder() as folder:
        raise KeyError
    assert not folder.exists()


def test_it_is_removed_when_it_is_gone_already():
    with scratch_folder() as folder:
        folder.rmdir()
    assert not folder.exists()


def test_without_a_shell_it_is_there_all_the_same(monkeypatch):
    def missing(*_, **options):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", missing)
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
    assert not folder.exists()


@pytest.mark.slow
def test_a_killed_process_leaves_nothing():
    with child([sys.executable, "-c", WAITS]) as process:
        folder = Path(process.stdout.readline().strip())
        assert (folder / "inside").is_dir()
        process.kill()
        process.wait()
        wait_until(lambda: not folder.exists())
