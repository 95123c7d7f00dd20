"""A page in a real browser, for tests: what it draws, says and requests."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.processes import PATIENCE

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
AXE = Path(__file__).parents[2] / "tools/axe/node_modules/axe-core/axe.min.js"
TEXT = ".plot.none"


class OpenPage:
    """An open page, its console messages and its requests."""

    def __init__(
        self, browser, file: Path, width: int = 1280, scheme: str = "light", state: str = ""
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        # Also on a busy machine.
        self.page.set_default_timeout(1000 * PATIENCE)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() + state)
        self.page.wait_for_selector("html[data-ready]")

    def plot(self, chart: str, group: int = 0):
        """A chart, drawn: each is when it comes into view."""
        plot = self.page.locator(f'[data-chart={chart}][data-group="{group}"]')
        plot.scroll_into_view_if_needed()
        plot.locator("svg").or_(plot.and_(self.page.locator(TEXT))).first.wait_for()
        return plot

    def count(self, chart: str, shape: str = "path", group: int = 0) -> int:
        """Count the shapes of a chart."""
        return self.plot(chart, group).locator(f"svg {shape}").count()

    def drawn(self, chart: str, group: int = 0) -> str:
        return self.plot(chart, group).inner_html()

    def legend(self, chart: str = "curve", group: int = 0):
        self.plot(chart, group)
        figure = f"figure:has([data-chart={chart}][data-group='{group}'])"
        return self.page.locator(f"{figure} .legend button:not(.all)")

    def tool(self, chart: str, name: str, group: int = 0):
        figure = f"figure:has([data-chart={chart}][data-group='{group}'])"
        return self.page.locator(f"{figure} .tools button", has_text=name)

    def saved(self, button) -> tuple[str, str]:
        """Press a button that saves a file; returns its name and text."""
        with self.page.expect_download() as download:
            button.click()
        return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")

    def print(self) -> None:
        """Lay the page out as for the printer."""
        self.page.evaluate("dispatchEvent(new Event('beforeprint'))")

    def too_wide(self) -> list[str]:
        """What is cut off on paper: tables that are wider than their box."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.wide-table')].filter(b => b.offsetParent)"
            ".filter(b => b.querySelector('table').getBoundingClientRect().width"
            " > b.getBoundingClientRect().width + 1).map(b => b.ariaLabel)"
        )

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page as it is now."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
            "v => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map(n => n.html).join(' | ')}`))"
        )
        return list(found)
