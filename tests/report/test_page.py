from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser

import pytest

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_result import RunResult
from fedpbc.report.comparison_table import cells_of, sent_unit
from fedpbc.report.page import PageTable, asset, write_page
from tests.commandline import content, fedpbc, ran, refused
from tests.synthetic_runs import accuracy, add_metrics, write_grid, write_run


class Page(HTMLParser):
    """The tables and text of a page, and what it would run or load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.scripts = self.cells = 0
        self.loads: list[str] = []
        self.inside: list[str] = []
        self.words: list[str] = []
        self.tags: dict[tuple[int, int], list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attribute = dict(attributes)
        self.loads += [v for k, v in attributes if k in {"src", "href"} and v]
        self.scripts += tag == "script"
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        if tag not in {"meta", "link", "img", "br"}:
            self.inside.append(f"{tag} {attribute.get('class', '')}".strip())

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop().split()[0] != tag:
            pass

    def handle_data(self, text):
        if any(i.startswith(("script", "style")) for i in self.inside):
            return
        self.words.append(text)
        if any(i.startswith("span tag") for i in self.inside):
            where = len(self.tables) - 1, len(self.tables[-1]) - 1
            self.tags.setdefault(where, []).append(text)
        elif (
            self.tables
            and self.tables[-1]
            and any(i.split()[0] in {"td", "th"} for i in self.inside)
        ):
            self.tables[-1][-1][-1] += text

    @property
    def all_views(self) -> int:
        """The number of the table with every view of every algorithm."""
        return next(k for k, table in enumerate(self.tables) if "uploads" in table[0])

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read(path) -> tuple[Page, dict]:
    text = path.read_text(encoding="utf-8")
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return Page(text), json.loads(data)


@pytest.fixture
def grid_page(tmp_path):
    runs = write_grid(tmp_path / "runs")
    write_page(tmp_path / "page.html", runs, title="A title")
    return (*read(tmp_path / "page.html"), runs)


def test_the_table_agrees_with_the_comparison(grid_page):
    page, _, runs = grid_page
    cells = []
    for path in runs:
        name, seed = path.parent.name, int(path.name[-1])
        run = RunDirectory(path)
        cells.append(RunResult(name, seed, 8, run.metrics(), cost=run.summary()["cost"]))
    comparison = Comparison(cells)
    head, *rows = page.tables[page.all_views]
    assert head[:5] == ["algorithm", "view", "test %", "train %", "worst class %"]
    assert head[5:] == [
        "local steps",
        "kB up",
        "kB down",
        "models on server",
        "on client",
        "uploads",
        "seconds",
        "peak memory",
    ]
    unit = sent_unit(comparison.rows())
    expected = [[text.rstrip("*") for text in cells_of(row, unit)] for row in comparison.rows()]
    assert [row[:10] for row in rows] == expected
    assert {tuple(row[10:]) for row in rows} == {("120", "10.0", "300 MiB")}
    # 120 uploads of 4,000 bytes each.
    assert rows[4][5:10] == ["1,600", "480", "480", "10", "1"]
    # By hand: the last evaluation alone is in the last fifth of 40 rounds.
    mean = [accuracy("fedpbc", seed, "mean", 40, 40) for seed in (0, 1)]
    assert rows[2][2] == f"{100 * sum(mean) / 2:.1f} ± 0.7"


def test_the_views_that_matter_are_marked(grid_page):
    page, data, _ = grid_page
    marked = {
        tuple(page.tables[t][row][:2]): tags
        for (t, row), tags in page.tags.items()
        if t == page.all_views
    }
    assert marked == {
        ("fedpbc", "mean"): ["paper"],
        ("fedpbc", "reported"): ["best deployable"],
        ("fedavg", "server"): ["paper"],
        ("fedavg", "averaged"): ["best deployable"],
    }
    [group] = data["groups"]
    assert group["paper_view"] == {"fedpbc": "mean", "fedavg": "server"}
    assert group["best_view"] == {"fedpbc": "reported", "fedavg": "averaged"}


def test_curves_are_means_and_deviations_over_seeds(grid_page):
    _, data, _ = grid_page
    curve = data["groups"][0]["curves"]["fedpbc"]
    assert curve["round"] == [10, 20, 30, 40]
    assert curve["local_steps"] == [400, 800, 1200, 1600]
    assert curve["uploads"] == [30, 60, 90, 120]
    assert curve["bytes_up"] == curve["bytes_down"] == [120_000, 240_000, 360_000, 480_000]
    assert curve["bytes_both"] == [240_000, 480_000, 720_000, 960_000]
    accuracy_curve = curve["views"]["mean"]["test_accuracy"]
    means = [0.3 + 0.5 * t / 40 + 0.005 for t in (10, 20, 30, 40)]
    assert accuracy_curve["mean"] == pytest.approx(means, rel=1e-4)
    assert accuracy_curve["deviation"] == pytest.approx([0.01 / 2**0.5] * 4, rel=1e-4)
    group = data["groups"][0]
    assert group["staleness"]["staleness_max"] == [9.5] * 4
    assert group["per_class"]["fedavg"]["server"] == pytest.approx([0.605, 0.3025, None], abs=1e-4)
    assert group["fleet"]["class_counts"][1] == [3, 4, 5]
    assert sum(group["fleet"]["p"]) == 8
    assert group["memory"] == {"fedpbc": 300 * 2**20, "fedavg": 300 * 2**20}


def axes_of(path) -> list[str]:
    [options] = re.findall(r'id="choose-x".*?</select>', path.read_text(encoding="utf-8"), re.S)
    return re.findall(r'<option value="(\w+)"', options)


def test_runs_of_a_version_that_counted_no_bytes(tmp_path):
    old = write_grid(tmp_path / "old", old=True)
    write_page(tmp_path / "old.html", old, title="Old")
    page, data = read(tmp_path / "old.html")
    assert axes_of(tmp_path / "old.html") == ["round", "local_steps", "uploads", "seconds"]
    assert page.tables[page.all_views][0][5:10] == [
        "local steps",
        "MB up",
        "MB down",
        "models on server",
        "on client",
    ]
    assert page.tables[page.all_views][1][5:11] == ["1,600", "–", "–", "1", "1", "120"]
    assert "Mean size of an upload" not in page.text
    assert data["groups"][0]["curves"]["fedpbc"]["bytes_both"] == [None] * 4
    # Beside newer runs the axes are there; these have no number on them.
    both = [*old, *write_grid(tmp_path / "new", ["scaffold"])]
    write_page(tmp_path / "both.html", both, title="Both")
    page, data = read(tmp_path / "both.html")
    assert axes_of(tmp_path / "both.html")[3:6] == ["bytes_up", "bytes_down", "bytes_both"]
    sent = {row[0]: row[6:8] for row in page.tables[page.all_views][1:]}
    assert sent == {"fedpbc": ["–", "–"], "fedavg": ["–", "–"], "scaffold†": ["960", "960"]}
    assert "Mean size of an upload: 8 kB." in page.text


def test_columns_of_bytes_are_sorted_by_number(tmp_path):
    write_page(tmp_path / "page.html", write_grid(tmp_path / "runs", ["scaffold"]), title="Page")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count('<td data-sort="960000.0">960</td>') == 4


def test_nothing_is_loaded_and_everything_is_there(grid_page):
    page, _, _ = grid_page
    assert all(url.startswith(("data:", "#")) for url in page.loads)
    assert page.scripts == 3
    assert "A title" in page.text
    assert "fedpbc run" in page.text


def test_text_from_files_cannot_run(tmp_path):
    evil = '<script>alert("x")</script>'
    run = tmp_path / "runs" / "<img src=x onerror=alert(1)>"
    write_run(run, "fedavg", links__name=evil, data__name=evil, links__note=evil)
    text = (run / "config.toml").read_text().replace('name = "fedavg"', f"name = '{evil}'")
    (run / "config.toml").write_text(text)
    write_page(
        tmp_path / "page.html",
        [run],
        title=evil,
        commands=[evil],
        notes=[evil],
        tables=[PageTable(evil, [evil], [[evil]], [evil])],
    )
    page, data = read(tmp_path / "page.html")
    assert page.scripts == 3
    assert list(data["groups"][0]["curves"]) == [evil]
    # Title (twice), command, note, the table's four, and the options of the runs.
    assert page.text.count(evil) > 10
    assert "<img src=x" not in (tmp_path / "page.html").read_text()


def test_an_unregistered_algorithm_is_shown_from_its_summary(tmp_path):
    write_page(
        tmp_path / "page.html",
        [write_run(tmp_path / "run", "fedmedian"), write_run(tmp_path / "other", "fedavg")],
        title="t",
    )
    page, data = read(tmp_path / "page.html")
    assert page.tables[page.all_views][3][:2] == ["fedmedian", "server"]
    assert page.tables[page.all_views][3][8:10] == ["1", "0"]
    assert set(data["groups"][0]["styles"]) == {"fedavg", "fedmedian"}
    assert data["groups"][0]["styles"]["fedavg"]["colour"] == "#E69F00"


def test_unfinished_runs_are_shown_as_far_as_they_are(tmp_path):
    one = write_run(tmp_path / "runs" / "one", "fedpbc")
    two = write_run(tmp_path / "runs" / "two", "fedavg", upto=20)
    three = write_run(tmp_path / "runs" / "three", "mifa", upto=10)
    RunDirectory(three).save_failure("the run diverged in round 17")
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    page, data = read(tmp_path / "page.html")
    # The table shows finished runs; the others are in footnotes and curves.
    assert {row[0] for row in page.tables[page.all_views][1:]} == {"fedpbc"}
    assert "not in this table: 1 unfinished, 1 failed; see the runs below." in page.text
    assert "not finished: round 20 of 40" in page.text
    assert "the run diverged in round 17" in page.text
    rows = {row[0]: row for row in page.tables[-1][1:]}
    assert rows["fedavg"][2:4] == ["unfinished", "20 of 40"]
    assert rows["mifa"][2:4] == ["failed", "10 of 40"]
    assert data["groups"][0]["curves"]["fedavg"]["round"] == [10, 20]
    assert data["groups"][0]["curves"]["fedavg"]["unfinished"]
    assert f"fedpbc resume {two}" in page.text
    assert one.is_dir()


def test_without_a_finished_run_the_table_shows_the_common_rounds(tmp_path):
    write_run(tmp_path / "runs" / "one", "fedpbc", upto=30)
    write_run(tmp_path / "runs" / "two", "fedavg", upto=20)
    ran("report", tmp_path / "runs")
    page, _ = read(tmp_path / "runs" / "report.html")
    assert "No run is finished yet: this shows the first 20 rounds." in page.text
    rows = {tuple(row[:2]): row for row in page.tables[page.all_views][1:]}
    expected = f"{100 * accuracy('fedpbc', 0, 'mean', 20, 40):.1f}"
    assert rows["fedpbc", "mean"][2] == expected


def test_a_run_without_evaluations(tmp_path):
    write_run(tmp_path / "run", upto=0, fleet=False)
    ran("report", tmp_path / "run")
    page, _ = read(tmp_path / "run" / "report.html")
    assert "Nothing has been evaluated yet." in page.text
    assert "no record of their links and data" in page.text


def test_why_a_run_failed_stands_first(tmp_path):
    runs = [write_run(tmp_path / f"{k}", seed=k, upto=0) for k in range(5)]
    for run in runs:
        (run / "failure.txt").write_text("client 3 diverged in round 0")
    write_page(tmp_path / "page.html", runs, title="Failed")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    lines = re.findall(r'<p class="note bad">(.*?)</p>', text)
    reasons = [f"fedavg, seed {k}, failed: client 3 diverged in round 0" for k in range(3)]
    assert lines == [*reasons, "2 more failed, see below"]
    assert text.index(lines[0]) < text.index('data-chart="curve"')
    # Nothing will follow.
    assert '<p class="note">Nothing has been evaluated.</p>' in text


@pytest.mark.parametrize(("alphas", "folded"), [((0.1, 0.5), 0), ((0.1, 0.5, 1.0), 3)])
def test_many_verdicts_are_folded_to_their_choices(tmp_path, alphas, folded):
    runs = [
        write_run(tmp_path / f"{name}:{alpha}" / f"seed-{seed}", name, seed, data__alpha=alpha)
        for name in ("fedpbc", "fedavg")
        for alpha in alphas
        for seed in (0, 1)
    ]
    write_page(tmp_path / "page.html", runs, title="A sweep")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    choices = re.findall(r"<summary>Verdict with data\.alpha=(\S+): fedpbc", text)
    assert len(choices) == folded
    assert text.count(" is clearly the best: ") == len(alphas)


def test_planned_runs_of_a_comparison_are_shown(tmp_path):
    folder = tmp_path / "compared"
    write_run(folder / "fedpbc" / "seed-0", "fedpbc")
    (folder / "compare.toml").write_text("seeds = [0]\n[algorithms.fedpbc]\n[algorithms.fedavg]\n")
    ran("report", folder)
    page, _ = read(folder / "report.html")
    states = {row[0]: row[2] for row in page.tables[-1][1:]}
    assert states == {"fedpbc": "finished", "fedavg": "not begun"}
    assert "learning rates differ" not in page.text
    assert f"fedpbc resume {folder}" in page.text


DAMAGED = {
    "no JSON": '{"round": 10,\n{}\n',
    "no object": "[]\n",
    "another round": '{"round": 11}\n',
    "no views": '{"round": 10, "views": {}}\n',
    "not a number": '{"round": 10, "views": {"server": {"test_loss": NaN}}}\n',
    "no text": b"\xff\xfe\n",
    "cut short": "",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_run_among_good_ones_is_shown_as_damaged(tmp_path, damage):
    write_run(tmp_path / "runs" / "good", "fedpbc")
    bad = write_run(tmp_path / "runs" / "bad", "fedavg")
    text = DAMAGED[damage]
    (bad / "metrics.jsonl").write_bytes(text if isinstance(text, bytes) else str(text).encode())
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    page, data = read(tmp_path / "page.html")
    rows = {row[0]: row for row in page.tables[-1][1:]}
    assert rows["fedavg"][2] == "damaged"
    assert rows["fedavg"][-1]
    assert list(data["groups"][0]["curves"]) == ["fedpbc"]
    # Alone it is refused.
    line = refused(fedpbc("report", bad, "--out", tmp_path / "other.html"))
    assert str(bad) in line
    assert "damaged" in line
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize("key", ["clients", "rounds", "evaluate_every"])
def test_a_list_in_place_of_a_number_is_damage(tmp_path, key):
    write_run(tmp_path / "runs" / "good", "fedpbc")
    bad = write_run(tmp_path / "runs" / "bad", "fedavg", upto=10)
    config = bad / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith(f"{key} =")]
    config.write_text("\n".join([f"{key} = [3]", *lines]) + "\n")
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    page, _ = read(tmp_path / "page.html")
    assert "damaged" in page.text


def test_a_damaged_configuration_among_good_ones_is_listed(tmp_path):
    write_run(tmp_path / "runs" / "good", "fedpbc")
    bad = write_run(tmp_path / "runs" / "bad", "fedavg")
    (bad / "config.toml").write_text("rounds = ")
    ran("report", tmp_path / "runs")
    page, _ = read(tmp_path / "runs" / "report.html")
    assert "Not shown below:" in page.text
    assert str(bad) in page.text


def test_a_damaged_fleet_file_counts_as_none(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "fleet.safetensors").write_bytes(b"nothing")
    ran("report", run)
    assert "no record of their links and data" in read(run / "report.html")[0].text


def test_wrong_folders_are_one_line_and_nothing_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    run = write_run(tmp_path / "run")
    before = content(tmp_path)
    for folder, message in (
        ("nowhere", "folder is '{}', but should be a folder that exists"),
        ("empty", "folder is '{}', but should be one with runs in it"),
        ("file", "folder is '{}', but should be a folder; this is a file"),
    ):
        line = refused(fedpbc("report", run, tmp_path / folder, "--out", tmp_path / "page.html"))
        assert line.startswith(message.format(tmp_path / folder))
    assert content(tmp_path) == before


def test_a_missing_folder_is_named_itself(tmp_path):
    line = refused(fedpbc("report", tmp_path / "missing"))
    assert line.startswith(f"folder is '{tmp_path / 'missing'}'")


def test_a_page_does_not_overwrite_other_files(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "report.html").write_text("<p>mine</p>")
    line = refused(fedpbc("report", run))
    assert line.endswith("which is not a report: choose a new file or an old report")
    assert (run / "report.html").read_text() == "<p>mine</p>"
    assert "this is a folder" in refused(fedpbc("report", run, "--out", tmp_path))
    missing = tmp_path / "missing" / "page.html"
    assert "a folder that exists" in refused(fedpbc("report", run, "--out", missing))
    # It replaces an older report, and the same runs make the same page.
    ran("report", run, "--out", tmp_path / "page.html")
    before = (tmp_path / "page.html").read_bytes()
    ran("report", run, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == before


def test_quadratics_have_a_distance_instead_of_an_accuracy(tmp_path):
    write_page(
        tmp_path / "page.html", write_grid(tmp_path / "runs", classes=False), title="Quadratics"
    )
    page, data = read(tmp_path / "page.html")
    assert data["groups"][0]["values"] == ["distance", "test_loss"]
    assert page.tables[0][0][2] == "test loss"
    assert "each class" not in page.text


def test_a_metric_that_is_missing_at_first_has_a_curve(tmp_path):
    add_metrics(write_run(tmp_path / "run"), {"recall": [None, 0.5, None, 0.25]})
    write_page(tmp_path / "page.html", [tmp_path / "run"], title="Own")
    _, data = read(tmp_path / "page.html")
    [group] = data["groups"]
    assert group["values"] == ["test_accuracy", "test_loss", "train_accuracy", "recall"]
    for view in group["curves"]["fedavg"]["views"].values():
        assert view["recall"]["mean"] == [None, 0.5, None, 0.25]


def test_the_bound_of_lemma_3_is_in_the_curves(tmp_path):
    run = write_run(tmp_path / "run", "fedpbc")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    bounded = [{**line, "consensus_bound": 2.5} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bounded))
    write_page(tmp_path / "page.html", [run], title="t")
    curve = read(tmp_path / "page.html")[1]["groups"][0]["curves"]["fedpbc"]
    assert curve["consensus_bound"] == [2.5] * 4
    assert curve["consensus_error"] == pytest.approx([0.1, 0.05, 0.033333, 0.025], rel=1e-4)


def test_tables_come_first_and_pictures_are_in_the_page(tmp_path):
    png = tmp_path / "figure.png"
    png.write_bytes(b"\x89PNG\r\n\x1a\n123")
    write_page(
        tmp_path / "page.html",
        [write_run(tmp_path / "run")],
        title="t",
        commands=["fedpbc paper table2 --quick"],
        notes=["Quick: fewer rounds."],
        tables=[PageTable("Table 2", ["algorithm", "15 %"], [["fedpbc", "150"]], ["a note"])],
        pictures=[png],
    )
    page, _ = read(tmp_path / "page.html")
    assert page.tables[0] == [["algorithm", "15 %"], ["fedpbc", "150"]]
    for text in ("Table 2", "a note", "Quick: fewer rounds.", "fedpbc paper table2 --quick"):
        assert text in page.text
    assert "data:image/png;base64,iVBORw0KGgoxMjM=" in page.loads


def test_a_large_grid_still_makes_a_page_that_opens(tmp_path):
    first = write_run(tmp_path / "runs" / "fedpbc" / "seed-0", "fedpbc", rounds=10_000)
    for seed in range(1, 4):
        copy = tmp_path / "runs" / "fedpbc" / f"seed-{seed}"
        shutil.copytree(first, copy)
        text = (copy / "config.toml").read_text().replace("seed = 0", f"seed = {seed}")
        (copy / "config.toml").write_text(text)
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    _, data = read(tmp_path / "page.html")
    curve = data["groups"][0]["curves"]["fedpbc"]
    assert len(curve["round"]) == 400
    assert (curve["round"][0], curve["round"][-1], curve["seeds"]) == (10, 10_000, 4)
    assert (tmp_path / "page.html").stat().st_size < 1_500_000


def test_the_chart_library_is_small_licensed_and_cannot_end_its_element():
    library = asset("echarts.min.js")
    assert len(library) < 600_000
    assert "</script" not in library.lower()
    assert "</script" not in asset("page.js").lower()
    assert "Apache License" in asset("LICENSE-echarts")
    assert "Apache ECharts" in asset("NOTICE-echarts")


def test_a_pipe_is_no_report(tmp_path):
    write_run(tmp_path / "run")
    os.mkfifo(tmp_path / "pipe")
    line = refused(fedpbc("report", tmp_path / "run", "--out", tmp_path / "pipe"))
    assert "which is not a report" in line


def test_a_link_to_itself_is_no_folder(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    refused(fedpbc("report", tmp_path / "loop"))


def test_a_page_of_sixty_runs_is_small(tmp_path):
    names = ("fedpbc", "fedavg", "mifa", "fedau", "scaffold")
    runs = []
    for k in range(3):
        runs += write_grid(
            tmp_path / f"{k}",
            names,
            range(4),
            rounds=1000,
            data__alpha=k + 0.1,
            links__sigma=k + 1.0,
        )
    write_page(tmp_path / "page.html", runs, title="Sixty")
    assert len(runs) == 60
    assert (tmp_path / "page.html").stat().st_size < 3_000_000


def test_the_clients_table_has_every_view_and_the_clients_own_models(grid_page):
    page, data, _ = grid_page
    [table] = [table for table in page.tables if "worst tenth %" in table[0]]
    assert [row[:2] for row in table[1:]] == [
        *(["fedpbc", view] for view in ("server", "averaged", "mean", "reported", "corrected")),
        ["fedpbc", "each client's own"],
        ["fedavg", "server"],
        ["fedavg", "averaged"],
    ]
    # Two seeds, 0.14 below their best clients.
    best = [accuracy("fedavg", seed, "server", 40, 40) for seed in (0, 1)]
    assert table[7][3] == f"{100 * (sum(best) / 2 - 0.14):.1f}"
    curve = data["groups"][0]["per_client"]["fedavg"]["server"]["accuracy"]
    assert curve == sorted(curve)
    assert len(curve) == 51


def test_verdict_chart_and_table_come_in_this_order(grid_page, tmp_path):
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    marks = [
        'class="note verdict"',
        'data-chart="curve"',
        "Views to deploy,",
        "worst class %",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def held_out(run) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for view in summary["client_accuracy"].values():
        view["held_out"] = True
    (run / "summary.json").write_text(json.dumps(summary))


def test_the_chart_of_clients_says_on_which_samples(tmp_path):
    first, second = write_grid(tmp_path / "runs", ["fedpbc"])

    def words() -> str:
        write_page(tmp_path / "page.html", [first, second], title="Two")
        return " ".join(read(tmp_path / "page.html")[0].text.split())

    training = "training samples of its own"
    test = "test samples, each class weighted by its share of the client's samples"
    assert f"On {training};" in words()
    held_out(first)
    assert f"On {test} (runs of earlier versions: {training});" in words()
    held_out(second)
    assert f"On {test};" in words()
    assert training not in words()
