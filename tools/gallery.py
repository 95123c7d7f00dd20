"""Make the pictures of docs/gallery.md again: small runs, their pages in a browser, their tables.

``python tools/gallery.py`` writes to docs/pictures, in about two minutes on two cores. It needs
Chromium and the extras ``dev`` and ``hub``. With ``--fleet FOLDER``, the server's folder of
``fedpbc fleet demo``, there is a picture of its status as well. ``--runs FOLDER`` keeps the runs,
so that pages can be photographed again without them.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 200_000
"""Bytes of a picture: the gallery is part of every clone."""
COMPARISON = (
    "compare --data digits --clients 20 --links markov --rounds 100 "
    "--algorithms fedavg,fedau,fedpbc,mifa --seeds 0-4 --ceiling"
)
"""As docs/gallery.md says."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; width: max-content; background: #16181d; color: #e6e6e6; padding: 16px 20px }}
pre {{ margin: 0; font: 14px/1.35 "DejaVu Sans Mono", monospace }}
</style><body><pre>{code}</pre>"""


def run(command: str, folder: Path, columns: int = 100) -> str:
    """The output of a fedpbc command, with the escapes for bold and colours."""
    ended = subprocess.run(
        [sys.executable, "-m", "fedpbc.cli.app", *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"fedpbc {command}\n{ended.stderr}")
    return ended.stdout


def terminal_page(command: str, output: str, columns: int = 100) -> str:
    """A command and its output as a page that looks like a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ fedpbc {command}", style="bold green"))
    console.print(Text.from_ansi(output))
    return console.export_html(inline_styles=True, code_format=TERMINAL)


def store(picture: bytes | Path, name: str, width: int) -> None:
    """Write a picture, no wider than that, in few colours."""
    from PIL import Image

    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    image = Image.open(source).convert("RGB")
    if image.width > width:
        size = (width, round(image.height * width / image.width))
        image = image.resize(size, Image.Resampling.LANCZOS)
    file = PICTURES / name
    image.quantize(128).save(file, optimize=True)
    if file.stat().st_size > LIMIT:
        raise SystemExit(f"{file} has {file.stat().st_size} bytes: more than {LIMIT}")
    print(f"{file.relative_to(ROOT)}: {image.width} x {image.height}, {file.stat().st_size} bytes")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window, which loads nothing but files."""
    from playwright.sync_api import sync_playwright

    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        raise SystemExit(f"no browser is installed: {', '.join(BROWSERS)}")
    with sync_playwright() as control:
        browser = control.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, file: Path, scheme: str = "light") -> Any:
    """A page of fedpbc at 1280 pixels, drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 1250}, color_scheme=scheme)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def photograph_report(browser: Any, file: Path) -> None:
    """The beginning of a page, light and dark, and the accuracy of each client."""
    for name, scheme in (("report.png", "light"), ("report-dark.png", "dark")):
        page = opened(browser, file, scheme)
        # Charts are drawn when they come into view, a moment later.
        page.locator("[data-chart=curve] svg").first.wait_for()
        page.wait_for_timeout(500)
        store(page.screenshot(), name, 1280)
        page.context.close()
    page = opened(browser, file)
    plot = page.locator("[data-chart=spread]").first
    plot.scroll_into_view_if_needed()
    plot.locator("svg").wait_for()
    page.wait_for_timeout(500)
    figure = page.locator("figure:has([data-chart=spread])").first
    store(figure.screenshot(), "clients.png", 1000)
    page.context.close()


def photograph_terminal(browser: Any, folder: Path, command: str, output: str, name: str) -> None:
    """A command and its output."""
    file = folder / f"{name}.html"
    file.write_text(terminal_page(command, output), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1100, "height": 400})
    page.goto(file.as_uri())
    store(page.locator("body").screenshot(), name, 1100)
    page.close()


def make(runs: Path, fleet: Path | None) -> None:
    """All pictures; ``runs`` is where the runs are, or will be."""
    from fedpbc.text import shell_quoted

    for figure, name in (("fig2", "bias.png"), ("fig6", "links.png")):
        picture = runs / figure / f"{figure}.png"
        if not picture.exists():
            run(f"paper {figure} --quick --out {figure}", runs)
        store(picture, name, 900)
    # A finished comparison is only printed again.
    output = run(f"{COMPARISON} --out compare", runs)
    store(runs / "compare" / "accuracy.png", "comparison.png", 1000)
    with chromium() as browser:
        photograph_report(browser, runs / "compare" / "report.html")
        # Up to the verdict: what follows names files.
        shown = output[: output.index("\n", output.index("verdict:"))]
        photograph_terminal(browser, runs, COMPARISON, shown, "terminal.png")
        if fleet is not None:
            output = run(f"fleet status {shell_quoted(fleet.resolve())}", runs)
            # Without the next commands, which name folders of this machine.
            shown = output.partition("\nnext:")[0]
            photograph_terminal(browser, runs, "fleet status server", shown, "fleet.png")


def main() -> None:
    """Read the options and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="keep the runs here, and use those there")
    parser.add_argument("--fleet", type=Path, help="the server's folder of a fleet")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    if options.runs is not None:
        options.runs.mkdir(parents=True, exist_ok=True)
        make(options.runs.resolve(), options.fleet)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.fleet)


if __name__ == "__main__":
    main()
