"""Pages in a browser; their tests are skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpbc.report.page import PageTable, write_page
from tests.report.browser import OpenPage
from tests.synthetic_runs import write_grid, write_run


@pytest.fixture(scope="session")
def page_file(tmp_path_factory) -> Path:
    """Two groups: a comparison with an unfinished algorithm, and quadratics."""
    folder = tmp_path_factory.mktemp("browser")
    runs = write_grid(folder / "classes", ["fedpbc", "fedavg", "mifa"])
    runs.append(write_run(folder / "classes" / "fedau" / "seed-0", "fedau", upto=20))
    runs += write_grid(folder / "quadratic", classes=False)
    table = PageTable("Table", ["algorithm", "rounds"], [["a", "20"], ["b", "100"], ["c", "–"]])
    write_page(folder / "page.html", runs, title="In a browser", tables=[table])
    return folder / "page.html"


@pytest.fixture
def opened(browser, page_file):
    """Open pages; whatever a test does with them: no error, and no request."""
    pages = []

    def open_(
        width: int = 1280, scheme: str = "light", file: Path = page_file, state: str = ""
    ) -> OpenPage:
        pages.append(OpenPage(browser, file, width, scheme, state))
        return pages[-1]

    yield open_
    for page in pages:
        assert page.messages == []
        urls = {url.partition("#")[0] for url in page.requests}
        own = {file.as_uri() for file in (page_file, *page_file.parent.glob("**/*.html"))}
        assert {url for url in urls if not url.startswith(("data:", "blob:"))} <= own
        page.context.close()
