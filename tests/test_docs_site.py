"""The documentation as a site: a page for every algorithm, built without warnings."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fedpbc
from fedpbc.algorithms import PAPER_ALGORITHMS
from fedpbc.cli.list import KINDS
from fedpbc.report.listing import list_choices
from tests.processes import PATIENCE

ROOT = Path(__file__).parents[1]
SITE = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))
NAMES = [choice["name"] for choice in list_choices()["algorithms"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_a_page(name):
    page = SITE["algorithm_page"](name)
    assert page.startswith(f"# {name}\n")
    for heading in SITE["HEADINGS"].values():
        assert re.search(rf"## {heading}\n\n- \*\*", page)
    assert re.search(r"- \*\*title\*\*: \*.{20,}\*\n- \*\*where\*\*: .*20[12]\d", page)
    # Formulas keep their lines.
    assert "←" in re.search(r"```text\n(.*?)\n```", page, flags=re.S)[1]


def test_pages_have_the_details():
    section = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    section = section.partition("## Details")[2].partition("\n## ")[0]
    told = re.findall(r"^- \*\*(\w+)\*\*", section, flags=re.M)
    assert "mifa" in told
    for name in NAMES:
        assert ("## Details\n" in SITE["algorithm_page"](name)) == (name in told)
    # Links lead out of the folder of the pages.
    assert "](../algorithms.md#why-scaffold-diverges-and-clip)" in SITE["algorithm_page"](
        "scaffold"
    )


def test_the_papers_algorithms_are_among_them():
    assert set(PAPER_ALGORITHMS) <= set(NAMES)
    assert set(KINDS) == set(list_choices())


def public(path: str) -> object:
    """What a dotted path names: a module, or a member of one."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)\n    options:\n      heading: fedpbc\.(\S+)$", text, re.M)
    shown = {name: path for path, name in entries}
    assert len(shown) == len(entries) == text.count("\n::: ")
    names = {name for name in dir(fedpbc) if not name.startswith("_")}
    assert names == {name for name in shown if "." not in name}
    for name in names:
        assert public(shown[name]) is getattr(fedpbc, name)
    members = re.search(r"::: fedpbc\.theory\n(?: .*\n)*?      members:\n((?: +- \w+\n)+)", text)
    listed = {*re.findall(r"- (\w+)", members[1]), "staleness"}
    assert listed == set(fedpbc.theory.__all__)
    assert "theory.staleness" in shown


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built once; nothing was said meanwhile."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    ended = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(site):
    pages = {str(page.relative_to(site)): page for page in site.glob("**/*.html")}
    assert {"index.html", "robustness.html", "algorithm/fedpbc.html"} <= set(pages)
    for name, page in pages.items():
        text = page.read_text(encoding="utf-8")
        found = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//[^>]*', text
        )
        assert not found, name
    reference = pages["reference.html"].read_text(encoding="utf-8")
    # Examples are code with prompts, not a paragraph; roles are not shown.
    assert reference.count('<span class="gp">') > 100
    assert not re.search(r":(func|attr|class|meth):", reference)
    # Signatures have the defaults, not where they are declared.
    signatures = re.sub(r"<[^>]*>", "", reference)
    assert "evaluate_every: int = 10," in signatures
    assert not re.search(r"= [A-Z]\w*(Section|General|Aggregation)?\.[a-z]\w*[,)\n]", signatures)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "algorithm/fedpbc.html"])
def test_search_works_from_disk(site, browser, page):
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(1000 * PATIENCE)
    elsewhere: list[str] = []
    opened.on("request", lambda request: elsewhere.append(request.url))
    opened.goto((site / page).as_uri())
    box = opened.locator(".md-search__input")
    box.click()
    box.press_sequentially("trimmed mean")
    found = opened.locator(".md-search-result__link[href*='robustness.html']")
    found.first.wait_for()
    found.first.click()
    opened.wait_for_url("**/robustness.html*")
    assert [url for url in elsewhere if not url.startswith("file:")] == []
    context.close()
