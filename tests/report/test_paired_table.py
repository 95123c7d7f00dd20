"""The paired differences as tables: text, Markdown and page."""

from __future__ import annotations

import pytest

from fedpbc.experiments.comparison import Comparison
from fedpbc.report.page_tables import paired_table
from fedpbc.report.paired_table import paired_headings, paired_notes, paired_rows
from fedpbc.report.write import markdown_results
from tests.commandline import fedpbc, ran, refused
from tests.report.test_page import read
from tests.scored_runs import failed, run, scored, seeds
from tests.synthetic_runs import write_grid

VALUES = {
    "fedavg": seeds(0.70, 0.72, 0.71),
    "mifa": seeds(0.74, 0.77, 0.77),
    "ceiling": seeds(0.79, 0.82, 0.82),
}
COSTS = {"mifa": {"server": 11}, "ceiling": {"steps": 1500, "sent": 12_345}}


def texts(comparison: Comparison, baseline: str | None = None) -> dict[str, list[str]]:
    paired = comparison.paired(baseline)
    return {row[0][0]: [text for text, _ in row[1:]] for row in paired_rows(comparison, paired)}


def test_rows_by_hand():
    comparison = scored(VALUES, COSTS)
    paired = comparison.paired()
    assert paired_headings(paired)[2:5] == ["test %", "vs fedavg", "recovered"]
    rows = texts(comparison)
    # 71 ± 4.303 × 1/√3; 5 ± 4.303 × 1/√3.
    assert rows["fedavg"] == [
        *("server", "71.0 (68.5 to 73.5)", "baseline", "0 %", "1.00", "1.00", "1", "0")
    ]
    assert rows["mifa†"] == [
        *("server", "76.0 (71.7 to 80.3)", "+5.0 (2.5 to 7.5), 3/3", "50 % (33 to 60)"),
        *("1.00", "1.00", "11", "0"),
    ]
    assert rows["ceiling"][2:6] == ["+10.0 (7.5 to 12.5), 3/3", "100 %", "15", "12.3"]
    below = texts(comparison, "mifa")["fedavg"]
    assert below[2] == "−5.0 (−7.5 to −2.5), 0/3"
    notes = " ".join(paired_notes(paired))
    assert "Failing links cost fedavg 10.0 points (7.5 to 12.5)." in notes


def test_undefined_and_one_seed_say_so():
    none = scored({**VALUES, "ceiling": seeds(0.70, 0.74, 0.69)})
    assert texts(none)["mifa†"][3] == "undefined"
    reason = "recovered is undefined: the ceiling is not above fedavg by more than the noise."
    assert reason in paired_notes(none.paired())
    one = scored({name: {4: values[0]} for name, values in VALUES.items()})
    assert texts(one)["mifa†"][1:4] == ["74.0", "+4.0 (one seed)", "44 %"]
    [first, *_] = paired_notes(one.paired())
    assert "one seed, so no interval: nothing can be told about noise" in first


def test_without_classes_and_costs_that_were_not_counted():
    values = {"fedavg": seeds(2.0, 3.0), "mifa": seeds(1.5, 2.4)}
    comparison = scored(values, classes=False, sent=None, client=None)
    assert paired_headings(comparison.paired())[2] == "test loss"
    row = texts(comparison)["mifa†"]
    # The loss itself, and a difference that is better above 0: 0.55 ± 12.706 × 0.05.
    assert row == ["server", "1.95 (−3.77 to 7.67)", "+0.55 (−0.0853 to 1.19), 2/2", *row[3:]]
    assert row[3:] == ["1.00", "–", "1", "–"]
    assert "in test loss, above 0 is better" in paired_notes(comparison.paired())[0]


def test_rows_that_share_no_seed_and_ties():
    runs = [run("fedavg", 0, 0.5), run("fedavg", 1, 0.5), run("mifa", 3, 0.5)]
    runs += [run("fedau", 0, 0.5), run("fedau", 1, 0.6)]
    rows = texts(Comparison(runs))
    assert rows["mifa†"][2] == "–"
    assert rows["fedau"][2].endswith("), 1/2, 1 tied")


def test_markdown_has_the_verdict_right_below_the_table():
    comparison = scored({k: v for k, v in VALUES.items() if k != "ceiling"}, COSTS)
    table, verdict, differences, notes = markdown_results(comparison).split("\n\n")
    assert table.startswith("| algorithm | view | test % |")
    assert verdict == f"**Verdict:** {comparison.verdict()}"
    assert "| mifa† | server | 76.0 (71.7 to 80.3) | +5.0 (2.5 to 7.5), 3/3 |" in differences
    assert all(line.startswith("- ") for line in notes.strip().splitlines())
    assert "vs mifa" in markdown_results(comparison, "mifa")
    # Nothing to compare: no second table.
    alone = markdown_results(scored({"mifa": seeds(0.5, 0.6)}))
    assert "there is nothing to compare mifa (view server) with" in alone
    assert "vs " not in alone


def test_the_page_marks_the_best_and_what_cannot_be_told_apart():
    comparison = scored({**VALUES, "fedau": seeds(0.73, 0.78, 0.76)}, COSTS)
    table = paired_table(comparison, comparison.paired(), comparison.verdict())
    tags = {row[0].text: [text for _, text in row[0].tags] for row in table.cells()}
    assert tags == {
        "fedavg": [],
        "mifa†": ["within noise"],
        "ceiling": [],
        "fedau": ["within noise"],
    }
    clear = scored({**VALUES, "fedau": seeds(0.95, 0.96, 0.95)}, COSTS)
    tags = [row[0].tags for row in paired_table(clear, clear.paired(), clear.verdict()).cells()]
    assert tags[3] == [("best", "clearly the best")]
    assert table.dimmed == {2}
    assert table.cells()[1][3].sort_value == pytest.approx(0.05)
    one = scored({"fedavg": seeds(0.1), "mifa": seeds(0.2)})
    marked = paired_table(one, one.paired(), one.verdict())
    # One seed shows nothing.
    assert all(not row[0].tags for row in marked.cells())


def test_the_verdict_is_at_the_top_of_a_group(tmp_path):
    write_grid(tmp_path / "runs")
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    page, _ = read(tmp_path / "page.html")
    assert page.text.index("Verdict:") < page.text.index("vs fedavg")
    assert page.all_views == 1
    [row] = [row for row in page.tables[0] if row[0] == "fedpbc"]
    # In its best view 0.26 + … against FedAvg's 0.12 + …, the same with both seeds.
    assert row[1:4] == ["reported", row[2], "+14.0 (14.0 to 14.0), 2/2"]
    assert "points above fedavg (the same with every seed)" in page.text
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html", "--baseline", "fedpbc")
    page, _ = read(tmp_path / "page.html")
    assert "vs fedpbc" in page.tables[0][0]


def test_a_wrong_baseline_writes_no_page(tmp_path):
    write_grid(tmp_path / "runs")
    page = tmp_path / "page.html"
    line = refused(fedpbc("report", tmp_path / "runs", "--out", page, "--baseline", "fedab"))
    assert "baseline is 'fedab', but should be one of fedavg, fedpbc; did you mean" in line
    assert not page.exists()


def test_names_cannot_break_out_of_the_page_or_the_table():
    comparison = Comparison([*scored({"fedavg": seeds(0.1, 0.2)}).runs, failed("<b>", 0)])
    sentence = comparison.verdict().sentence
    assert "not ranked: <b> (no run finished)" in sentence  # The template escapes it.
