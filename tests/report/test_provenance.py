from __future__ import annotations

import sys

from fedpbc.report.page import write_page
from fedpbc.report.provenance import commit_of, provenance

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_commit_is_read_from_a_branch_a_packed_branch_a_work_tree_or_none(tmp_path):
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(tmp_path) == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert commit_of(tmp_path) == COMMIT[:12]
    (git / "refs/heads/main").write_text("f" * 40 + "\n")
    assert commit_of(tmp_path) == "f" * 12
    (git / "HEAD").write_text(COMMIT + "\n")
    assert commit_of(tmp_path) == COMMIT[:12]
    tree = git / "worktrees" / "other"
    tree.mkdir(parents=True)
    (tree / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / "commondir").write_text("../..\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".git").write_text(f"gitdir: {tree}\n")
    assert commit_of(tmp_path / "other") == "f" * 12
    assert commit_of(tmp_path / "nowhere") == ""


def test_the_command_is_that_of_the_shell(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedpbc", "report", "my runs", "--watch"])
    assert provenance().command == "fedpbc report 'my runs' --watch"
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    assert provenance().command == ""


def test_a_page_tells_when_and_by_what_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedpbc", "report", "<runs>"])
    write_page(tmp_path / "page.html", [], title="Empty")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    made = provenance()
    assert f"fedpbc {made.version}" in text
    assert made.date[:10] in text
    assert "fedpbc report &#39;&lt;runs&gt;&#39;" in text
    assert "0 runs" not in text
