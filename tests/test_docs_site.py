"""The documentation as a site: a page for every algorithm, built without warnings."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedpbc.algorithms import PAPER_ALGORITHMS
from fedpbc.cli.list import KINDS
from fedpbc.report.listing import list_choices

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))
NAMES = [choice["name"] for choice in list_choices()["algorithms"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_a_page(name):
    page = SITE["algorithm_page"](name)
    assert page.startswith(f"# {name}\n")
    for heading in SITE["HEADINGS"].values():
        assert re.search(rf"## {heading}\n\n- \*\*", page)


def test_the_papers_algorithms_are_among_them():
    assert set(PAPER_ALGORITHMS) <= set(NAMES)
    assert set(KINDS) == set(list_choices())


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    ended = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    for page in ("index", "tutorial", "reference", "algorithm/fedpbc"):
        text = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        # Nothing is loaded from elsewhere: it works from disk.
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?://', text)
