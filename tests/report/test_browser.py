"""The report in a real browser: charts, sorting, switches, and no request to the network."""

from __future__ import annotations

from functools import partial

import pytest

from fedpbc.report.page import write_page
from tests.processes import PATIENCE
from tests.report.browser import OpenPage
from tests.synthetic_runs import write_grid, write_run

pytestmark = pytest.mark.slow


CHARTS = {
    0: (
        *("curve", "classes", "spread", "likely", "clients", "staleness", "consensus"),
        *("seconds", "time", "memory"),
    ),
    1: ("curve", "likely", "staleness", "consensus", "seconds", "time", "memory"),
}


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_and_nothing_overflows(opened, width):
    open_ = opened(width)
    for group, charts in CHARTS.items():
        for chart in charts:
            box = open_.plot(chart, group).locator("svg")
            assert box.count() == 1, chart
            size = box.bounding_box()
            assert size["width"] > (250 if width == 390 else 400)
            assert size["height"] > 150
            assert open_.count(chart, group=group) >= 2, chart
    canvas = open_.page.locator("canvas").first
    assert canvas.evaluate(
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    )
    assert open_.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_worst_tenth_of_the_clients_is_grey(opened):
    open_ = opened()
    plot = open_.plot("spread")
    box = plot.locator("svg path[fill-opacity='0.15']").bounding_box()
    whole = plot.locator("svg").bounding_box()
    # A tenth of the axis, as high as the picture without its labels.
    assert 0.07 < box["width"] / whole["width"] < 0.1
    assert box["height"] > 0.6 * whole["height"]


def rows(open_: OpenPage, table: int) -> list[str]:
    return (
        open_.page.locator("table").nth(table).locator("tbody tr td:first-child").all_inner_texts()
    )


def test_tables_sort_by_click_and_by_key(opened):
    open_ = opened(1280)
    head = open_.page.locator("table").nth(0).locator("th").nth(1)
    button = head.locator("button")
    assert head.get_attribute("aria-sort") == "none"
    button.click()
    # As numbers: as text 20 would be more than 100. Cells without a number are last either way.
    assert rows(open_, 0) == ["b", "a", "c"]
    assert head.get_attribute("aria-sort") == "descending"
    button.press("Enter")
    assert rows(open_, 0) == ["a", "b", "c"]
    assert head.get_attribute("aria-sort") == "ascending"
    accuracy = open_.page.locator("table", has_text="uploads").first.locator("th").nth(2)
    accuracy.locator("button").press("Space")
    cells = open_.page.locator("table", has_text="uploads").first.locator(
        "tbody tr td:nth-child(3)"
    )
    accuracies = [float(text.split()[0]) for text in cells.all_inner_texts()]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len(accuracies) == 9


def test_a_name_in_the_legend_hides_its_curve(opened):
    open_ = opened(1280)
    before = open_.count("curve")
    legend = open_.legend()
    # The best that a server could deploy, not the paper's view.
    assert legend.all_inner_texts() == [
        "fedpbc (reported)",
        "fedavg (averaged)",
        "fedau (averaged)",
        "mifa† (averaged)",
    ]
    legend.nth(0).click()
    assert legend.nth(0).get_attribute("aria-pressed") == "false"
    assert open_.count("curve") < before
    legend.nth(0).press("Enter")
    assert open_.count("curve") == before


def test_axis_view_and_value_can_be_chosen(opened):
    open_ = opened(1280)
    page, drawings = open_.page, [open_.drawn("curve")]
    for choose in (
        *(
            partial(page.locator("#choose-x").select_option, axis)
            for axis in ("local_steps", "uploads", "bytes_up", "bytes_both", "seconds")
        ),
        lambda: page.get_by_label("model evaluated").select_option("paper"),
        lambda: page.get_by_label("model evaluated").select_option("server"),
        lambda: page.get_by_label("model evaluated").select_option("all:fedpbc"),
        lambda: page.locator("#choose-xscale").select_option("log"),
        lambda: page.locator("#choose-fit").select_option("fit"),
        lambda: page.locator("#choose-bands").select_option("interval"),
        lambda: page.locator("#choose-bands").select_option("none"),
        lambda: page.locator("#choose-yscale").select_option("log"),
        lambda: page.locator("#choose-value").select_option("test_loss"),
    ):
        choose()
        drawings.append(open_.drawn("curve"))
    assert len(set(drawings)) == len(drawings)
    page.get_by_role("button", name="reset", exact=True).click()
    assert open_.drawn("curve") == drawings[0]
    page.get_by_label("model evaluated").select_option("mean")
    assert "has no such view" in page.locator(".legend").first.inner_text()
    # The legend names the evaluated view, and a point shows its numbers.
    page.locator("[data-chart=curve]").first.hover()
    assert "±" in page.locator("[data-chart=curve]").first.inner_text()


def test_a_run_without_bytes_is_left_out_over_bytes(opened, page_file):
    folder = page_file.parent / "mixed"
    runs = [*write_grid(folder, ["fedavg"], old=True), *write_grid(folder, ["scaffold"])]
    file = page_file.with_name("mixed.html")
    write_page(file, runs, title="Old and new")
    open_ = opened(1280, file=file)
    plot = open_.page.locator("[data-chart=curve]")
    plot.hover()
    assert {"fedavg", "scaffold"} <= set(plot.inner_text().replace("(", " ").split())
    open_.page.locator("#choose-x").select_option("bytes_both")
    assert "1.92 MB" in plot.inner_text()
    open_.page.mouse.move(0, 0)
    plot.hover()
    shown = plot.inner_text().replace("(", " ").split()
    assert "scaffold" in shown
    assert "fedavg" not in shown
    title = open_.page.locator("figure:has([data-chart=curve]) figcaption b").inner_text()
    assert title == "Test accuracy over bytes sent up and down"


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_mode_follows_the_system_or_the_switch(opened):
    dark, light = opened(1280, "dark"), opened(1280)
    assert background(dark.page) == "rgb(20, 23, 27)"
    assert background(light.page) == "rgb(255, 255, 255)"
    black = light.drawn("curve")
    light.page.get_by_role("button", name="dark").click()
    assert background(light.page) == "rgb(20, 23, 27)"
    assert light.drawn("curve") != black
    dark.page.get_by_role("button", name="light").click()
    assert background(dark.page) == "rgb(255, 255, 255)"


def test_a_live_page_reloads_itself_and_keeps_its_state(opened, page_file):
    file = page_file.with_name("live.html")
    runs = sorted(page_file.parent.glob("classes/*/seed-*"))
    # Seconds enough for what follows, also on a busy machine.
    write_page(file, runs, title="Before", live=12)
    open_ = opened(1280, file=file)
    open_.page.locator("#choose-x").select_option("uploads")
    open_.legend().first.click()
    open_.page.evaluate("scrollTo(0, 600)")
    write_page(file, runs, title="After")
    open_.page.get_by_role("heading", name="After").wait_for(timeout=PATIENCE * 1000)
    open_.page.wait_for_selector("html[data-ready]")
    assert open_.page.locator("#choose-x").input_value() == "uploads"
    assert open_.page.locator(".legend button").first.get_attribute("aria-pressed") == "false"
    assert open_.page.evaluate("scrollY") == 600


def test_names_from_files_do_not_run(opened, page_file):
    evil = "<img src=x onerror=console.error(1)>"
    run = page_file.parent / "evil"
    write_run(run, "fedavg", links__name=evil)
    text = (run / "config.toml").read_text().replace('name = "fedavg"', f'name = "{evil}"')
    (run / "config.toml").write_text(text)
    file = page_file.with_name("evil.html")
    write_page(file, [run], title=evil)
    open_ = opened(1280, file=file)
    open_.page.locator("[data-chart=curve]").hover()
    open_.page.locator("[data-chart=time]").hover()
    assert open_.page.locator("img").count() == 0
    assert evil in open_.page.locator(".legend").first.inner_text()


def test_a_page_before_the_first_evaluation_works_and_reloads(opened, page_file):
    run = write_run(page_file.parent / "begun", upto=0, fleet=False)
    file = page_file.with_name("begun.html")
    write_page(file, [run], title="Before", live=1)
    open_ = opened(1280, file=file)
    # It is loaded anew every second: on a busy machine a look may fall between two pages.
    chart = open_.page.locator("[data-chart=curve]")
    chart.get_by_text("Nothing has been evaluated yet.", exact=True).wait_for(timeout=60_000)
    write_page(file, [run], title="After")
    open_.page.get_by_role("heading", name="After").wait_for(timeout=60_000)
