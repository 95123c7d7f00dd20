"""What a reader takes from a page: an address that shows the same, files, a part of a chart."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_the_address_shows_the_same_view_to_others(opened):
    first = opened()
    assert "#" not in first.page.url
    for key, value in {
        **{"x": "bytes_up", "view": "server", "value": "test_loss", "xscale": "log"},
        **{"yscale": "linear", "fit": "fit", "bands": "none"},
    }.items():
        first.page.locator(f"#choose-{key}").select_option(value)
    first.legend().nth(1).click()
    head = first.page.locator("table[aria-label^=Every]").first.locator("th").nth(2)
    head.locator("button").click()
    address = first.page.url
    second = opened(state="#" + address.partition("#")[2])
    assert second.drawn("curve") == first.drawn("curve")
    assert second.page.url == address
    assert second.legend().nth(1).get_attribute("aria-pressed") == "false"
    other = second.page.locator("table[aria-label^=Every]").first.locator("th").nth(2)
    assert other.get_attribute("aria-sort") == head.get_attribute("aria-sort") == "descending"
    # Another address in the same tab, and nothing left of it after a reset.
    second.page.evaluate("location.hash = '#x=seconds'")
    second.page.wait_for_function("document.getElementById('choose-x').value === 'seconds'")
    assert second.legend().nth(1).get_attribute("aria-pressed") == "true"
    second.page.get_by_role("button", name="reset", exact=True).click()
    assert "=" not in second.page.url.partition("#")[2]


def test_an_address_that_makes_no_sense_is_harmless(opened):
    usual = opened().drawn("curve")
    odd = opened(state="#x=nothing&view=all:nobody&zoom=0:5:1:0:1&zoom=x&sort=99:1:up&sort=0:99:up")
    assert odd.drawn("curve") == usual


def test_a_rectangle_or_a_button_zooms(opened):
    open_ = opened()
    whole = open_.drawn("curve")
    box = open_.plot("curve").bounding_box()
    mouse = open_.page.mouse
    mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.3 * box["height"])
    mouse.down()
    mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.7 * box["height"])
    mouse.up()
    part = open_.drawn("curve")
    assert part != whole
    assert "zoom=0" in open_.page.url
    again = opened(state="#" + open_.page.url.partition("#")[2])
    assert "zoom=0" in again.page.url
    open_.tool("curve", "reset zoom").click()
    mouse.move(0, 0)
    assert "#" not in open_.page.url
    open_.tool("curve", "+").click()
    assert "zoom=0" in open_.page.url
    for _ in range(3):
        open_.tool("curve", "−").click()
    assert "zoom" not in open_.page.url
    # Another axis has other parts.
    open_.tool("curve", "+").click()
    open_.page.locator("#choose-x").select_option("uploads")
    assert "zoom" not in open_.page.url


# Chromium drops the tenth file that a page saves within a second, without a word.
@pytest.mark.parametrize("charts", [("curve", "classes", "spread"), ("clients", "likely", "time")])
def test_every_chart_is_saved_as_svg_and_csv(opened, charts):
    open_ = opened()
    for chart in charts:
        open_.plot(chart)
        name, text = open_.saved(open_.tool(chart, "SVG"))
        assert name.startswith("in-a-browser-")
        svg = ElementTree.fromstring(text)
        words = "".join(svg.itertext())
        assert svg.tag.endswith("svg")
        if chart in {"curve", "spread"}:
            # It stands alone: with its legend.
            assert "fedpbc (reported)" in words
        head, *lines = rows_of(open_.saved(open_.tool(chart, "CSV"))[1])
        assert lines
        assert {len(line) for line in lines} == {len(head)}, chart


def test_a_chart_and_a_timetable_are_saved_with_their_numbers(opened):
    open_ = opened()
    open_.plot("curve")
    head, *lines = rows_of(open_.saved(open_.tool("curve", "CSV"))[1])
    assert head == ["curve", "round", "test accuracy, %", "plus or minus"]
    assert lines[0] == ["fedpbc (reported)", "10", "39", "0.70711"]
    figure = open_.page.locator("figure:has(canvas)").first
    timetable = rows_of(open_.saved(figure.locator("button", has_text="CSV"))[1])
    assert len(timetable) == 9
    assert len(timetable[0]) == 41
    assert {cell for row in timetable[1:] for cell in row[1:]} == {"0", "1"}


def test_tables_are_saved_as_csv_and_latex(opened):
    open_ = opened()
    box = open_.page.locator(".table-box:has(table[aria-label^=Every])").first
    head, *lines = rows_of(open_.saved(box.locator("button", has_text="CSV"))[1])
    assert head[:3] == ["algorithm", "view", "test %"]
    assert head[-1] == "marks"
    assert lines[3][:2] == ["fedpbc", "reported"]
    assert lines[3][-1] == "best deployable"
    _, text = open_.saved(box.locator("button", has_text="LaTeX"))
    assert "\\begin{tabular}{llrrr" in text
    assert "test \\% " in text
    assert "$\\pm$" in text
    assert "\\textbf{reported}" in text
    assert "mifa$\\dagger$" in text


def test_a_name_under_the_pointer_stands_out(opened):
    open_ = opened()
    before = open_.drawn("curve")
    open_.legend().nth(1).hover()
    assert open_.drawn("curve") != before
    assert 'opacity="0.12"' in open_.drawn("curve")


def test_a_fitted_range_holds_the_bands_and_no_impossible_share(opened):
    open_ = opened(state="#fit=fit&bands=interval")
    texts = open_.plot("curve").locator("svg text").all_text_contents()
    ticks = [float(text) for text in texts if text.replace("-", "").replace(".", "").isdigit()]
    assert min(ticks) >= 0
    assert max(ticks) <= 100


def test_all_names_are_hidden_at_once(opened):
    open_ = opened()
    open_.page.get_by_role("button", name="hide all").first.click()
    assert open_.plot("curve").inner_text() == "All curves are hidden."
    open_.page.get_by_role("button", name="show all", exact=True).first.click()
    assert open_.count("curve") > 5


def test_classes_have_a_key_of_colours(opened):
    open_ = opened()
    open_.plot("clients")
    figure = open_.page.locator("figure:has([data-chart=clients])").first
    assert figure.locator(".legend span").all_inner_texts() == ["0", "1", "2"]
