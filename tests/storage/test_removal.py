"""What is removed, and by whom."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedpbc
from fedpbc.storage.removal import remove_entries, remove_tree
from tests.commandline import content

SOURCE = Path(fedpbc.__file__).parent

REMOVERS = {
    # The one place.
    "storage/removal.py",
    # Its own temporary files, which it knows by their names and locks.
    "storage/atomic.py",
    # Sockets of earlier processes: nothing but a socket is removed.
    "deployment/sockets.py",
}
METHODS = {"unlink", "rmdir", "rmtree", "removedirs"}


def removals(path: Path) -> Iterator[int]:
    """The lines of a module that remove a file or a folder."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            if node.attr in METHODS or ast.unparse(node) == "os.remove":
                yield node.lineno
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module in ("os", "shutil")
            and {alias.name for alias in node.names} & {*METHODS, "remove"}
        ):
            yield node.lineno


def test_only_these_modules_remove_files():
    found = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if any(removals(path))
    }
    assert found == REMOVERS


@pytest.mark.parametrize(
    "line",
    ["path.unlink()", "os.remove(name)", "shutil.rmtree(folder)", "from shutil import rmtree"],
)
def test_each_of_these_would_be_found(tmp_path, line):
    (tmp_path / "module.py").write_text(line)
    assert list(removals(tmp_path / "module.py"))


@pytest.fixture
def folders(tmp_path):
    for name in ("ours/inner", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("kept")
    (tmp_path / "ours" / "file*").write_text("x")
    (tmp_path / "ours" / "file1").write_text("kept")
    (tmp_path / "ours" / "link").symlink_to(tmp_path / "outside" / "file")
    (tmp_path / "ours" / "linked").symlink_to(tmp_path / "outside")
    return tmp_path


def test_entries_are_files_and_links_of_the_folder_itself(folders):
    before = content(folders)
    names = ["file*", "link", "linked", "inner", "inner/file", "../outside/file", "missing"]
    remove_entries(folders / "ours", names)
    left = {name for name in before if name not in {"ours/file*", "ours/link", "ours/linked"}}
    assert content(folders) == {name: before[name] for name in left}


def test_a_tree_goes_without_what_its_links_lead_to(folders):
    (folders / "shortcut").symlink_to(folders / "outside")
    remove_tree(folders / "shortcut")
    remove_tree(folders / "ours")
    assert not (folders / "ours").exists()
    assert (folders / "shortcut" / "file").read_text() == "kept"


def test_a_folder_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").touch()

    def refuse(name, **_):
        raise OSError(errno.EROFS, "Read-only file system", name)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match=f"Read-only file system: '{tmp_path / 'old'}'"):
            remove_tree(tmp_path / "old")
    remove_tree(tmp_path / "old")
    assert not (tmp_path / "old").exists()
