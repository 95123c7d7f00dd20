"""How large a report of many runs is, how long it takes to write, and to open in a browser.

    python -m benchmarks.page                 # 60 runs
    python -m benchmarks.page --runs 775 --evaluations 100

The runs are written, not computed. Opening is measured in headless Chromium, from the request to
the page that can be used, with the charts that are seen first drawn; the median of several.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from tests.report.browser import BROWSER
from tests.synthetic_runs import write_run

from benchmarks.machine import describe
from fedpbc.experiments.integrity import sealed
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.report.load import find_runs
from fedpbc.report.page import write_page

ALGORITHMS = ("fedpbc", "fedavg", "mifa", "fedau", "scaffold")
SEEDS = 4
OPENED = 5
EVERY = 10


def write_runs(folder: Path, count: int, evaluations: int) -> None:
    """Write this many runs, five algorithms and four seeds a group, as a finished run has them."""
    for k in range(count):
        rest, seed = divmod(k, SEEDS)
        group, place = divmod(rest, len(ALGORITHMS))
        name = ALGORITHMS[place]
        path = write_run(
            folder / f"group-{group}" / name / f"seed-{seed}",
            name,
            seed,
            rounds=EVERY * evaluations,
            every=EVERY,
            data__alpha=0.1 + group,
            links__sigma=1.0 + group,
        )
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps(sealed(RunDirectory(path), summary)))


def opening_seconds(page: Path) -> list[float]:
    """Open the page several times, each in a browser's context of its own."""
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as control:
        browser = control.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for _ in range(OPENED):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            tab = context.new_page()
            tab.set_default_timeout(300_000)
            began = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]")
            tab.wait_for_selector(".plot[data-chart=curve] svg")
            seconds.append(time.perf_counter() - began)
            context.close()
        browser.close()
    return seconds


def main() -> None:
    """Measure, and print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--evaluations", type=int, default=100)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        write_runs(folder, options.runs, options.evaluations)
        page = folder / "page.html"
        began, used = time.perf_counter(), time.process_time()
        write_page(page, find_runs([folder]), title=f"{options.runs} runs")
        written, processor = time.perf_counter() - began, time.process_time() - used
        opened = opening_seconds(page) if BROWSER else []
        result = {
            "runs": options.runs,
            "evaluations": options.evaluations,
            "megabytes": round(page.stat().st_size / 1e6, 2),
            "seconds_to_write": round(written, 2),
            "processor_seconds_to_write": round(processor, 2),
            "seconds_to_open": round(statistics.median(opened), 2) if opened else None,
            "seconds_to_open_each": [round(value, 2) for value in opened],
            "machine": describe(),
        }
        print(json.dumps(result, indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
