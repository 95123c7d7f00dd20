from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.experiments.comparison import Comparison
from fedpbc.experiments.run_result import RunResult
from fedpbc.paper.like_for_like import changed_settings
from fedpbc.paper.plan import PaperCondition
from fedpbc.paper.table2 import (
    accuracy_table,
    first_round,
    reached_table,
    rounds_reached,
    thresholds_of,
)
from tests.commandline import fedpbc, ran, refused
from tests.small_grids import SMALL, line, numbers

pytestmark = pytest.mark.slow

CIFAR = PaperCondition(("cifar10", "bernoulli_varying"), "cifar10", "bernoulli_varying", 450)


def test_only_sampled_rounds_count():
    rounds, means = [50, 100, 150, 200, 250, 300], [0.5, 0.1, 0.2, 0.9, 0.1, 0.4]
    assert first_round(rounds, means, 20, 150) == 150
    assert first_round(rounds, means, 30, 150) == 300
    assert first_round(rounds, means, 45, 150) is None
    assert first_round(rounds, means, 45, 50) == 50


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 100), st.sampled_from([1, 2])
)
def test_the_first_round_that_reaches_an_accuracy_is_found(means, percent, every):
    rounds = list(range(1, len(means) + 1))
    found = first_round(rounds, means, percent, every)
    sampled = [r for r in rounds if r % every == 0 and 100 * means[r - 1] >= percent]
    assert found in (min(sampled, default=None), first_round(rounds, means, percent - 1e-9, every))
    if sampled:
        assert found is not None
        assert found <= sampled[0]


def test_an_accuracy_is_not_missed_by_a_rounding_error():
    assert first_round([150], [0.1 + 0.2], 30, 150) == 150
    assert first_round([150], [0.29 * 100 / 100], 29, 150) == 150


def test_the_mean_over_seeds_is_sampled_in_every_view():
    cells = [
        RunResult(
            "fedpbc", 0, 9, [line(150, server=0.1, mean=0.2), line(300, server=0.3, mean=0.5)]
        ),
        RunResult(
            "fedpbc", 1, 9, [line(150, server=0.1, mean=0.4), line(300, server=0.31, mean=0.5)]
        ),
        RunResult("mine", 0, failure="it diverged"),
    ]
    reached = rounds_reached(CIFAR, Comparison(cells), 150)
    assert reached["thresholds"] == [15, 30, 45, 60]
    by_view = {row["view"]: row for row in reached["rows"]}
    # (0.2 + 0.4)/2 is 30 % in round 150, (0.3 + 0.31)/2 in round 300.
    assert by_view["mean"]["first_rounds"] == [150, 150, 300, None]
    assert by_view["server"]["first_rounds"] == [300, 300, None, None]
    assert by_view["mean"]["paper"] == [150, 150, 450, 3300]
    assert by_view["server"]["paper"] is None


def test_shown_are_the_papers_view_and_the_best_deployable_one():
    first = line(150, server=0.1, mean=0.2)
    for view, accuracy in (("reported", 0.15), ("corrected", 0.18)):
        first["views"][view] = line(150, server=accuracy)["views"]["server"]
    runs = [
        RunResult("fedpbc", 0, 9, [first]),
        RunResult("fedavg", 0, 9, [line(150, server=0.05)]),
    ]
    comparison = Comparison(runs)
    reached = rounds_reached(CIFAR, comparison, 150)
    # The numbers have every view.
    assert [row["view"] for row in reached["rows"]][:4] == [
        "server",
        "mean",
        "reported",
        "corrected",
    ]
    shown = [["fedpbc", "mean"], ["fedpbc", "corrected*"], ["fedavg", "server*"]]
    assert [row[:2] for row in reached_table(CIFAR, reached).rows] == shown
    table = accuracy_table(CIFAR, comparison, 150)
    assert table.head == ["algorithm", "view", "round 150", "local steps", "kB up", "kB down"]
    assert table.rows == [
        ["fedpbc", "mean", "20.0", "750", "150", "300"],
        ["fedpbc", "corrected*", "18.0", "750", "150", "300"],
        ["fedavg", "server*", "5.0", "750", "150", "300"],
    ]


def test_differences_and_marks():
    """First rounds do not depend on how many are run, but on everything else."""
    cells = [
        RunResult("fedpbc", 0, 9, [line(150, server=0.1, mean=0.2)]),
        RunResult("f3ast", 0, 9, [line(150, server=0.1)]),
    ]
    reached = rounds_reached(CIFAR, Comparison(cells), 150)
    table = reached_table(CIFAR, reached)
    assert table.head[2:5] == ["15 %", "paper", "differs by"]
    [mean] = [row for row in table.rows if row[1] == "mean"]
    f3ast = table.rows[-1]
    assert mean[2:5] == ["150", "150", "+0"]
    assert f3ast[3].endswith(" §")
    assert [note for note in table.notes if note.startswith("§ f3ast")]
    reached["not_like_the_paper"] = changed_settings({"clients": 8})
    table = reached_table(CIFAR, reached)
    assert "differs by" not in table.head
    assert all(len(row) == len(table.head) for row in table.rows)
    assert "No difference to the paper is shown: this has other settings" in table.notes[-2]


def test_other_links_have_no_published_rounds():
    cells = [RunResult("fedpbc", 0, 9, [line(150, server=0.1, mean=0.2)])]
    condition = PaperCondition(("cifar10", "markov"), "cifar10", "markov", 150)
    assert rounds_reached(condition, Comparison(cells), 150)["rows"][1]["paper"] is None


def test_other_data_sets_get_quarters_of_the_best_in_the_papers_view():
    cells = [
        RunResult("fedpbc", 0, 9, [line(150, server=0.99, mean=0.77)]),
        RunResult("fedavg", 0, 9, [line(150, server=0.6)]),
    ]
    condition = PaperCondition(("fashion", "markov"), "fashion", "markov", 150)
    thresholds, origin = thresholds_of(condition, Comparison(cells))
    assert thresholds == (17.5, 35, 52.5, 70)
    assert "77.0 % in the paper's view, rounded down to 70 %" in origin


def test_a_small_grid_end_to_end(tmp_path):
    out = tmp_path / "out"
    few = (*SMALL[:-1], 300, "--algorithms", "fedavg,mifa", "--seeds", "0", "--out", out)
    ended = ran("paper", "table2", *few, "--jobs", 1)
    assert "digits · bernoulli_varying: first round to reach an accuracy" in ended.out
    assert "Trained with the default step sizes, η_0 = 0.05 and η_g = 1" in ended.out
    assert "One seed." in ended.out
    assert ended.out.splitlines()[-1].startswith("next: ")
    found = numbers(out, "table2")
    [group] = found["groups"]
    assert {(row["algorithm"], row["view"]) for row in group["rows"]} == {
        (name, view) for name in ("fedavg", "mifa") for view in ("server", "averaged")
    }
    for name in ("table2.md", "report.html", "table2-digits-bernoulli_varying.png"):
        assert (out / name).stat().st_size > 0
    assert (out / "table2-digits-bernoulli_varying.pdf").read_bytes().startswith(b"%PDF")
    assert (out / "digits/bernoulli_varying/fedavg/seed-0/summary.json").is_file()


def test_the_last_evaluations_must_fall_on_the_sampled_rounds(tmp_path):
    given = (*SMALL, "--set", "evaluate_every_at_end=40", "--out", tmp_path / "out")
    line = refused(fedpbc("paper", "table2", *given))
    assert "evaluate_every_at_end is 40, but should be a divisor of 150" in line


@pytest.mark.parametrize("every", ["40", "0", "'often'"])
def test_evaluations_must_fall_on_the_sampled_rounds(tmp_path, every):
    out = tmp_path / "out"
    ended = fedpbc("paper", "table2", *SMALL, "--set", f"evaluate_every={every}", "--out", out)
    assert "should be a divisor of 150" in refused(ended)
    assert not out.exists()
