from __future__ import annotations

from dataclasses import replace

import pytest

from fedpbc import ALGORITHMS, Comparison
from fedpbc.experiments.run_result import RunResult
from fedpbc.report.comparison_table import CEILING_NOTE, TRAIN_NOTE, footnotes, markdown_table
from fedpbc.report.plot import comparison_figure, plot_comparison
from fedpbc.report.style import curve_styles, line_style, style_of
from tests.scored_runs import scored, seeds

PNG = b"\x89PNG\r\n\x1a\n"


def lines(
    accuracies: list[float],
    views=("server", "averaged"),
    classes: bool = True,
    sent: int | None = 203_000,
) -> list:
    metrics = []
    for k, accuracy in enumerate(accuracies):
        evaluation = {
            "test_accuracy": accuracy if classes else None,
            "train_accuracy": accuracy / 2 if classes else None,
            "test_loss": 2 - accuracy,
            "train_loss": 2 - accuracy,
            "per_class": [accuracy, 0.125] if classes else None,
        }
        cost = {"local_steps": 1234, "uploads": 77}
        if sent is not None:
            cost |= {"bytes_up": 77 * sent, "bytes_down": 77 * sent + 500_000}
        metrics.append({"round": 10 * (k + 1), **cost, "views": dict.fromkeys(views, evaluation)})
    return metrics


ALL = ("server", "averaged", "mean", "reported", "corrected")
OF_FEDPBC = {
    "models_on_server": dict(zip(ALL, (1, 2, None, 90, 91), strict=True)),
    "models_on_client": 1,
    "memory_aided": False,
}
OF_MIFA = {
    "models_on_server": {"server": 101, "averaged": 102},
    "models_on_client": 0,
    "memory_aided": True,
}


BY_VALUES = "the algorithm's best view that a server could deploy, chosen by the values shown here"
BEFOREHAND = "the view to deploy, chosen beforehand (deploy_view)"


@pytest.mark.parametrize(
    ("chosen", "note"),
    [
        ({}, BY_VALUES),
        ({"fedpbc": "server", "mifa": "averaged"}, f"{BEFOREHAND}, not by the values shown here"),
        ({"fedpbc": "server"}, f"{BEFOREHAND}; of mifa the best by the values shown here"),
    ],
)
def test_the_footnote_says_what_views_were_chosen_by(chosen, note):
    runs = [replace(run, deploy_view=chosen.get(run.label)) for run in comparison().runs]
    assert footnotes(Comparison(runs))[1].startswith(f"* {note}; mean needs")


def comparison(classes: bool = True, seeds: int = 2, sent: int | None = 203_000) -> Comparison:
    cells = []
    for seed in range(seeds):
        metrics = lines([0.2, 0.4 + seed / 5], ALL, classes, sent)
        cells.append(RunResult("fedpbc", seed, 100, metrics, cost=OF_FEDPBC))
        metrics = lines([0.3, 0.5], classes=classes, sent=sent)
        cells.append(RunResult("mifa", seed, 100, metrics, cost=OF_MIFA))
    return Comparison(cells)


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    rows = {}
    for line in text.splitlines()[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0], cells[1]] = cells[2:]
    return rows


def test_the_table_has_the_expected_values():
    rows = rows_of(markdown_table(comparison()))
    assert rows["fedpbc", "mean"] == [
        "50.0 ± 14.1",
        "25.0 ± 7.1",
        "12.5 ± 0.0",
        "1,234",
        "16",  # 77 uploads of 203 kB
        "16",
        "–",
        "1",
    ]
    # Where views are equal the first one counts as the best.
    assert rows["fedpbc", "server*"][-2:] == ["1", "1"]
    assert rows["fedpbc", "reported"][-2:] == ["90", "1"]
    assert rows["fedpbc", "corrected"][-2:] == ["91", "1"]
    assert rows["mifa†", "server*"] == [
        "50.0 ± 0.0",
        "25.0 ± 0.0",
        "12.5 ± 0.0",
        "1,234",
        "16",
        "16",
        "101",
        "0",
    ]


def test_the_table_says_what_an_upload_has():
    text = markdown_table(comparison())
    assert text.splitlines()[0].endswith("| MB up | MB down | models on server | on client |")
    assert "Mean size of an upload: 203 kB." in text
    of_scaffold = lines([0.3, 0.5], sent=406_000)
    runs = [*comparison().runs, RunResult("scaffold", 0, 100, of_scaffold)]
    larger = markdown_table(Comparison(runs))
    assert "Mean size of an upload: 203 kB (fedpbc, mifa); 406 kB (scaffold)." in larger
    assert rows_of(larger)["scaffold†", "server*"][-5:] == ["1,234", "31", "32", "–", "–"]


def test_runs_that_counted_no_bytes_have_a_dash():
    text = markdown_table(comparison(sent=None))
    assert rows_of(text)["mifa†", "server*"][-5:] == ["1,234", "–", "–", "101", "0"]
    assert "size of an upload" not in text


def test_the_notes_say_how_to_read_it():
    text = markdown_table(comparison())
    assert "20 rounds" in text
    assert "over 2 seeds" in text
    assert "last 4 rounds" in text
    assert "† aided by memory or known statistics" in text
    assert "which no server has" in text
    one = markdown_table(comparison(seeds=1))
    assert "one seed" in one
    assert "±" not in one


def test_without_classes_the_table_has_the_loss():
    text = markdown_table(comparison(classes=False))
    assert text.splitlines()[0].split(" | ")[2] == "test loss"
    rows = rows_of(text)
    assert rows["mifa†", "server*"][0] == "1.5 ± 0"
    assert len(rows["mifa†", "server*"]) == 6


def test_failures_are_listed():
    failed = Comparison([*comparison().runs, RunResult("fedau", 3, failure="the run diverged")])
    assert "- failed: fedau, seed 3: the run diverged" in markdown_table(failed)


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_plot_is_a_png(tmp_path, classes, seeds):
    path = tmp_path / "plot.png"
    plot_comparison(comparison(classes, seeds), path, "title")
    data = path.read_bytes()
    assert data.startswith(PNG)
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
    assert (width, height) == (1800, 810)
    assert [p.name for p in tmp_path.iterdir()] == ["plot.png"]


def test_an_algorithm_looks_the_same_in_every_plot():
    drawn: dict[str, set] = {}
    both = comparison()
    alone = Comparison([c for c in both.runs if c.algorithm == "mifa"])
    for compared in (both, alone):
        for axes in comparison_figure(compared, "title").axes:
            for line in axes.get_lines():
                style = (line.get_color(), line.get_linestyle(), line.get_marker())
                drawn.setdefault(str(line.get_label()).split()[0], set()).add(style)
    assert {name: len(styles) for name, styles in drawn.items()} == {"fedpbc": 1, "mifa†": 1}
    assert drawn["fedpbc"] != drawn["mifa†"]


def entry(label: str, algorithm: str) -> list[RunResult]:
    runs = [run for run in comparison().runs if run.algorithm == "fedpbc"]
    return [replace(run, algorithm=algorithm, label=label) for run in runs]


def test_entries_are_shown_by_label_and_the_ceiling_is_marked():
    labels = {"fedau:cutoff=5": "fedau", "careful": "fedau", "ceiling": "fedavg"}
    compared = Comparison([run for label, name in labels.items() for run in entry(label, name)])
    table = markdown_table(compared)
    assert "| fedau:cutoff=5 | server" in table
    assert "| careful | server" in table
    assert "| ceiling‡ | server" in table
    assert CEILING_NOTE in table
    assert CEILING_NOTE not in markdown_table(comparison())
    shown = {line.get_label() for line in comparison_figure(compared, "t").axes[0].get_lines()}
    assert shown == {"fedau cutoff=5 (mean)", "careful (mean)", "ceiling‡ (mean)"}


def test_curves_of_one_option_have_colours_of_their_own_or_their_algorithms():
    alone = curve_styles({f"alpha={k}": "fedpbc" for k in range(5)})
    assert len({style.colour for style in alone.values()}) == 5
    names = {f"{a} alpha={k}": a for a in ("fedpbc", "fedavg") for k in (1, 2)}
    both = curve_styles({**names, "ceiling alpha=1": "fedavg", "ceiling alpha=2": "fedavg"})
    assert len(set(both.values())) == 6
    colours = {both[f"fedpbc alpha={k}"].colour for k in (1, 2)}
    assert colours == {style_of("fedpbc").colour}
    assert both["fedpbc alpha=1"].dash == both["fedavg alpha=1"].dash
    assert both["fedpbc alpha=1"].dash != both["fedpbc alpha=2"].dash


def test_a_plot_where_some_failed(tmp_path):
    failed = Comparison([*comparison().runs, RunResult("fedau", 0, failure="diverged")])
    plot_comparison(failed, tmp_path / "plot.png", "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)


def test_styles_differ_also_for_additional_algorithms():
    styles = [line_style(k) for k in range(40)]
    assert len(set(styles)) == 40
    # Ten differ in colour, in dashes and in marker.
    for kind in zip(*styles[:10], strict=True):
        assert len(set(map(str, kind))) == 10
    # In grey, all in the package can be told apart by dashes and marker; dashes and colour suffice,
    # too, where a curve is too short for markers.
    grey = {(str(dash), marker) for _, dash, marker in styles[: len(ALGORITHMS)]}
    short = {(colour, str(dash)) for colour, dash, _ in styles[: len(ALGORITHMS)]}
    assert len(grey) == len(short) == len(ALGORITHMS) == 18


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (None, True),
        ({"evaluated": 5000, "all": 60_000}, True),
        ({"evaluated": 1438, "all": 1438}, False),
    ],
)
def test_a_part_of_the_training_samples_is_told_only_where_it_is_one(counts, told):
    runs = [replace(run, train_samples=counts) for run in scored({"fedavg": seeds(0.5)}).runs]
    assert (TRAIN_NOTE in footnotes(Comparison(runs))) == told
