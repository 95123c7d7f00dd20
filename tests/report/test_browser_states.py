"""Pages of every state in a browser: nothing to show, broken charts, paper, and accessibility."""

from __future__ import annotations

import json
import re

import pytest

from fedpbc.deployment.ops.status_page import StatusPage
from fedpbc.report.page import write_page
from tests.deployment.round_logs import round_line, write_log
from tests.report.browser import AXE
from tests.synthetic_advice import write_synthetic_advice
from tests.synthetic_runs import add_metrics, write_grid, write_run

pytestmark = pytest.mark.slow

needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: 'make test' does it where npm is"
)


def failed_in_round_0(folder):
    run = write_run(folder / "failed", upto=0)
    (run / "failure.txt").write_text("client 3 diverged in round 0")
    return [run]


def unfinished_at_round_0(folder):
    return [write_run(folder / "begun", upto=0)]


def unfinished_without_links(folder):
    return [write_run(folder / "older", upto=0, fleet=False)]


def mixed(folder):
    """Groups of every kind beside each other, and a run that cannot be read."""
    runs = [*failed_in_round_0(folder), *write_grid(folder / "classes")]
    runs += write_grid(folder / "old", ["fedavg"], data__alpha=0.7, links__sigma=1.0, old=True)
    runs += write_grid(folder / "quadratic", classes=False)
    runs.append(write_run(folder / "part", upto=20, data__alpha=0.5, model__name="cnn"))
    damaged = write_run(folder / "damaged")
    (damaged / "metrics.jsonl").write_text("{}\n")
    return [*runs, damaged]


def many(folder):
    """Thirty runs, ten algorithms: as much as a reader can bear."""
    names = ("fedpbc", "fedavg", "mifa", "fedau", "scaffold", "fedprox", "fednova", "feddyn")
    return write_grid(folder / "many", (*names, "fedadam", "fedyogi"), seeds=(0, 1, 2))


STATES = {
    "failed in round 0": failed_in_round_0,
    "unfinished at round 0": unfinished_at_round_0,
    "unfinished, of an earlier version": unfinished_without_links,
    "mixed groups": mixed,
    "no runs": lambda folder: [],
    "thirty runs": many,
    "advice": None,
    "a fleet": None,
}


def write_fleet_page(folder):
    """A fleet whose clients answer, are silent, refused and new; one has left."""
    lines = [round_line(t, [0, 1] if t % 3 else [0], refused=[2]) for t in range(30)]
    lines[10] |= {"joined": [40], "left": [3]}
    server = write_log(folder / "server", lines, clients=40, rounds=50, connected=range(30))
    StatusPage(server, folder / "page.html", "A fleet").write()
    return folder / "page.html"


@pytest.fixture(scope="module", params=STATES)
def state_file(request, page_file):
    folder, make_runs = (
        page_file.parent / re.sub("[ ,]+", "-", request.param),
        STATES[request.param],
    )
    folder.mkdir()
    if make_runs is None:
        return (write_fleet_page if request.param == "a fleet" else write_synthetic_advice)(folder)
    write_page(folder / "page.html", make_runs(folder), title=request.param)
    return folder / "page.html"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_state_is_shown_whole(opened, state_file, width, scheme):
    open_ = opened(width, scheme, file=state_file)
    plots = open_.page.locator(".plot[data-chart]:visible")
    charts = plots.evaluate_all("all => all.map(p => [p.dataset.chart, +p.dataset.group])")
    for chart, group in charts:
        assert "could not be drawn" not in open_.plot(chart, group).inner_text()
    assert open_.page.evaluate("document.documentElement.scrollWidth") <= width
    # A table that is cut off says so.
    for box in open_.page.locator(".table-box:visible").all():
        cut = "b => b.scrollWidth - b.clientWidth - b.scrollLeft > 2"
        assert box.locator(".hint").is_visible() == box.locator(".wide-table").evaluate(cut)
    if AXE.is_file():
        assert open_.violations() == []
    open_.print()
    assert open_.too_wide() == []


def test_the_advice_page_sorts_saves_and_prints(opened, page_file, tmp_path):
    file = write_synthetic_advice(page_file.parent / "advised")
    open_ = opened(390, "dark", file=file)
    assert (
        open_.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    )
    table = open_.page.get_by_role("table", name="Views to deploy")
    table.get_by_role("button", name="test %").click()
    assert table.locator("tbody tr").first.inner_text().startswith("fedpbc")
    box = open_.page.locator(".table-box:has(table[aria-label^='Views to deploy'])")
    assert box.locator(".hint").is_visible()
    name, text = open_.saved(box.locator(".tools button", has_text="LaTeX"))
    assert name.startswith("what-to-run-on-bernoulli-views-to-deploy")
    assert name.endswith(".tex")
    assert "fedpbc" in text
    links = open_.page.locator("figure:has(img.picture)")
    name, text = open_.saved(links.locator(".tools button", has_text="SVG"))
    assert name.endswith(".svg")
    assert "<svg" in text
    assert len(open_.legend().all_inner_texts()) == 3
    assert re.search("Made by fedpbc .*, on 20", open_.page.locator("footer").inner_text())
    open_.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    open_.print()
    assert open_.too_wide() == []


@needs_axe
def test_a_page_with_choices_is_accessible(opened):
    open_ = opened(1280, state="#view=all:fedpbc&xscale=log&hide=fedavg&hide=fedpbc+mean")
    open_.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert open_.violations() == []


def test_at_390_pixels_the_first_numbers_are_seen(opened):
    open_ = opened(390)
    table = open_.page.locator("table[aria-label^=Every]").first
    table.scroll_into_view_if_needed()
    cell = table.locator("tbody tr").first.locator("td").nth(2)
    box = cell.bounding_box()
    assert cell.inner_text().split()[0].replace(".", "").isdigit()
    assert box["x"] + box["width"] <= 390
    hint = open_.page.locator(".table-box:has(table[aria-label^=Every]) .hint").first
    assert hint.is_visible()
    open_.page.locator(".wide-table:has(table[aria-label^=Every])").first.evaluate(
        "b => b.scrollTo(b.scrollWidth, 0)"
    )
    hint.wait_for(state="hidden")


def test_a_chart_that_fails_leaves_the_others_and_the_reload(opened, page_file):
    file = page_file.with_name("broken.html")
    runs = sorted(page_file.parent.glob("classes/*/seed-*"))
    # It reloads itself long after this part, however busy the machine is.
    write_page(file, runs, title="Before", live=3000)
    text = file.read_text(encoding="utf-8")
    assert text.count('"fleet":{') == 1
    start = text.index('"staleness":{')
    file.write_text(
        text[:start] + '"staleness":{"round":null},"was":{' + text[start + 13 :], "utf-8"
    )
    open_ = opened(file=file)
    assert "could not be drawn" in open_.plot("staleness").inner_text()
    assert open_.count("time") > 2
    assert open_.count("curve") > 2
    [message] = open_.messages
    assert "TypeError" in message
    open_.messages.clear()
    # Even without any of its data the page is replaced by the next version.
    write_page(file, runs, title="Before", live=3)
    text = file.read_text(encoding="utf-8")
    start = text.index('id="data">') + len('id="data">')
    file.write_text(text[:start] + "{" + text[start:], "utf-8")
    open_.page.reload(wait_until="commit")
    write_page(file, runs, title="After")
    open_.page.get_by_role("heading", name="After").wait_for(timeout=60_000)
    open_.messages.clear()


def test_the_page_prints_with_its_charts(opened, tmp_path):
    open_ = opened(390, "dark")
    open_.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    # Afterwards it is dark again.
    body = "getComputedStyle(document.body).backgroundColor"
    assert open_.page.evaluate(body) == "rgb(20, 23, 27)"


def test_many_groups_start_folded_and_print_unfolded(opened, page_file):
    file = page_file.parent / "folds.html"
    runs = [
        write_run(page_file.parent / f"fold-{k}", rounds=40 + 10 * k, every=10) for k in range(5)
    ]
    write_page(file, runs, title="Five groups")
    open_ = opened(file=file)
    folds = open_.page.locator("details.fold")
    assert [fold.get_attribute("open") is not None for fold in folds.all()] == [True, *[False] * 4]
    open_.page.locator("nav a").nth(3).click()
    assert folds.nth(3).get_attribute("open") is not None
    assert open_.page.url.endswith("#group-3")
    assert open_.count("curve", group=3) > 2
    open_.print()
    assert open_.page.locator(".plot[data-chart=curve] svg").count() == 5


def test_a_long_table_shows_the_best_views_first(opened, page_file):
    file = page_file.parent / "long.html"
    runs = write_grid(page_file.parent / "long", ("fedpbc", "fedavg", "mifa", "fedau", "fedprox"))
    write_page(file, runs, title="Long")
    open_ = opened(file=file)
    table = open_.page.locator("table[aria-label^=Every]")
    assert table.locator("tbody tr:visible").count() == 5
    open_.page.get_by_role("button", name="show all 13 views").click()
    assert table.locator("tbody tr:visible").count() == 13
    name, text = open_.saved(
        open_.page.locator(".table-box:has(table[aria-label^=Every]) .tools button", has_text="CSV")
    )
    assert name == "long-every-view-of-every-algorithm.csv"
    assert len(text.splitlines()) == 14


@pytest.mark.parametrize(
    ("value", "values", "linear"),
    [
        ("f1", [0.2, 0.5, 0.6, 0.61], True),
        # A coefficient of determination may be below 0, and so may a likelihood.
        ("r2", [-0.4, None, 0.1, 0.2], True),
        ("nll_loss", [0.5, 0.1, -0.3, -0.9], True),
        ("hinge_loss", [9.0, 0.9, 0.09, 0.009], False),
        # Already in percent.
        ("my_accuracy", [20.0, 40.0, 60.0, 61.0], True),
    ],
)
def test_metrics_of_ones_own_are_drawn_whole(opened, page_file, value, values, linear):
    file = page_file.parent / f"{value}.html"
    run = write_run(page_file.parent / value)
    add_metrics(run, {value: values})
    write_page(file, [run], title=value)
    open_ = opened(file=file, state=f"#value={value}")
    ticks = open_.plot("curve").locator("text").all_text_contents()
    # The rounds begin at 0; a logarithmic axis has no zero.
    assert ticks.count("0") == (2 if linear else 1), ticks
    _, text = open_.saved(open_.tool("curve", "CSV"))
    shown = [line.split(",")[2] for line in text.splitlines()[1:]]
    assert [None if each == "" else float(each) for each in shown] == values


def test_the_data_in_the_page_is_complete(page_file):
    text = page_file.read_text(encoding="utf-8")
    start = text.index('id="data">') + len('id="data">')
    data = json.loads(text[start : text.index("</script>", start)])
    assert set(data["groups"][0]["per_client"]) == {"fedpbc", "fedavg", "mifa"}
    assert set(data["groups"][0]["per_client"]["fedpbc"]) == {
        *("server", "averaged", "mean", "reported", "corrected", "own")
    }
