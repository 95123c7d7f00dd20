"""The table of a comparison in terminals of different widths."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedpbc.cli import terminal
from fedpbc.cli.results import (
    comparison_table,
    fitting_table,
    more_seeds,
    show_comparison,
    show_summary,
)
from fedpbc.experiments.comparison import Spread
from fedpbc.experiments.comparison_directory import ComparisonDirectory
from tests.commandline import ran
from tests.report.test_comparison_table import comparison


@pytest.fixture
def shown(monkeypatch, capsys):
    """Show the comparison in a terminal of a width, or where there is none."""

    def show(width: int | None, **options) -> list[str]:
        files: list[io.StringIO] = []

        def open_console(*, min_width: int = 0, **_) -> Console:
            files.append(io.StringIO())
            own = 80 if width is None else width
            return Console(
                file=files[-1],
                width=max(own, min_width),
                force_terminal=width is not None,
                color_system=None,
            )

        monkeypatch.setattr(terminal, "open_console", open_console)
        show_comparison(comparison(**options), ComparisonDirectory(Path("folder")))
        table = "".join(file.getvalue() for file in files)
        return [line.rstrip() for line in (table + capsys.readouterr().out).splitlines()]

    return show


FULL = "fedpbc corrected 50.0 ± 14.1 25.0 ± 7.1 12.5 ± 0.0 1,234 16 16 91 1"
STARRED = "fedpbc server* 50.0 ± 14.1 1,234 16"


@pytest.mark.parametrize("width", [120, None])
def test_a_wide_terminal_shows_every_view(shown, width):
    lines = shown(width)
    [found] = [line for line in lines if "corrected" in line]
    assert " ".join(found.split()) == FULL
    assert len(found) <= 120
    assert not any("as the terminal is narrow" in line for line in lines)
    assert any(line.startswith("train % is") for line in lines)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrow_terminal_shows_five_columns_of_the_starred_views(shown, width):
    lines = shown(width)
    assert STARRED in [" ".join(line.split()) for line in lines]
    assert not any("corrected" in line for line in lines if line.startswith(" "))
    narrow = "not shown, as the terminal is narrow: the other views, train %, worst class %, "
    text = " ".join(lines)
    assert narrow in text
    assert "table.md has them" in text
    # The sentence is broken at its words, not by the terminal within them.
    [first] = [line for line in lines if line.startswith("not shown, as the")]
    assert len(first) <= width
    # What the left-out column means is not explained.
    assert not any(line.startswith("train % is") for line in lines)
    # A table's lines begin with a space; those of text the terminal wraps.
    table = [line for line in lines if line.startswith(" ") and "±" in line]
    assert all(len(line) <= max(width, 50) for line in table)


@pytest.mark.parametrize(
    ("there", "more"), [([0, 1, 2], "0-9"), ([7, 40], "0-9"), (range(10), "10-19")]
)
def test_the_hint_names_seeds_of_which_some_are_new(there, more):
    assert more_seeds(there) == more


def test_the_best_row_is_bold():
    rows = comparison().rows()
    shown = io.StringIO()
    Console(file=shown, width=120, force_terminal=True).print(comparison_table(rows))
    bold = [line for line in shown.getvalue().splitlines() if "1,234" in line and "\x1b[1m" in line]
    assert len(bold) == 1
    assert "*" in bold[0]


def test_long_labels_fold(shown, monkeypatch):
    rows = comparison().rows()
    long = [replace(row, label=f"{row.label}:local_steps=20:learning_rate=0.1") for row in rows]
    table, _ = fitting_table(long, 60)
    shown = io.StringIO()
    Console(file=shown, width=60).print(table)
    assert all(len(line) <= 60 for line in shown.getvalue().splitlines())
    assert "50.0 ± 14.1" in shown.getvalue()


def test_metrics_of_ones_own_are_columns_where_they_fit():
    rows = [replace(row, metrics={"f1": Spread(0.5, 0.25, 2)}) for row in comparison().rows()]
    for width, other in ((None, None), (80, "train %")):
        table, left_out = fitting_table(rows, width)
        shown = io.StringIO()
        Console(file=shown, width=width or 200).print(table)
        assert "0.5 ± 0.25" in shown.getvalue()
        assert "f1" not in left_out
        assert other is None or other in left_out


def test_a_table_without_classes_has_nothing_to_leave_out(shown):
    lines = shown(120, classes=False)
    assert not any("not shown" in line for line in lines)
    [found] = [line for line in lines if "corrected" in line]
    assert " ".join(found.split()) == "fedpbc corrected 1.5 ± 0.141 1,234 16 16 91 1"


DIFFERENCE = "mifa† 0.0 (−127.1 to 127.1), 1/2 1.00 1.00"
"""0.4 and 0.6 against 0.5: 0 ± 12.706 × 14.14/√2 points."""


@pytest.mark.parametrize("width", [120, None, 80, 40])
def test_the_verdict_is_right_below_the_table_and_the_differences_fit(shown, width):
    lines = shown(width)
    [verdict] = [k for k, line in enumerate(lines) if line.startswith("verdict: ")]
    sentence = f"verdict: {comparison().verdict()}"
    assert "over 2 seeds" in sentence
    # A terminal has it in several lines.
    assert " ".join(lines[verdict:]).startswith(sentence)
    # What show() prints is before what say() prints here, in a terminal it is in order.
    found = [line for line in lines if "(−127.1 to 127.1)" in line]
    [row] = [" ".join(line.split()) for line in found if line.startswith(" mifa†")]
    narrow = width is not None and width <= 80
    full = f"mifa† server 50.0 (50.0 to 50.0) {DIFFERENCE[6:]} 101 0"
    # The narrowest have no ratios: the verdict names what the choice costs.
    shortest = DIFFERENCE.removesuffix(" 1.00 1.00")
    assert row == (shortest if width == 40 else DIFFERENCE if narrow else full)
    assert all(len(line) <= max(width or 120, 80) for line in found if line.startswith(" "))
    # What a column means that is not shown is not explained.
    assert any(line.startswith("test % here") for line in lines) == (not narrow)


def test_one_seed_says_so(shown):
    lines = shown(100, seeds=1)
    assert any(
        line.startswith("verdict: undecided, since one seed says nothing about noise")
        for line in lines
    )
    assert any("one seed, so no interval" in line for line in lines)


def test_the_summary_of_a_run_that_counted_no_bytes(capsys):
    summary = {
        **dict.fromkeys(("algorithm", "links", "data", "engine"), "x"),
        "rounds": 3,
        "seconds": 1.0,
        "views": {"server": {"test_loss": 1.0}},
        "cost": {"local_steps": 15, "uploads": 2, "models_on_server": {"server": 1}},
    }
    show_summary(summary, Path("run"))
    assert "after 3 rounds: 15 local steps, 2 uploads, 1.0 s, engine x" in capsys.readouterr().out
    summary["cost"] |= {"bytes_up": 1_234_567, "bytes_down": 999, "models_on_client": 2}
    show_summary(summary, Path("run"))
    costs = "2 uploads, 1.23 MB up, 999 B down, 2 models on a client, 1.0 s"
    assert costs in capsys.readouterr().out


def test_the_next_step_after_untuned_step_sizes_is_to_tune_them(tmp_path):
    out = tmp_path / "out"
    given = ("--data", "digits", "--clients", 5, "--rounds", 4, "--seeds", "0-1", "--jobs", 1)
    ended = ran("compare", *given, "--algorithms", "fedavg,mifa", "--out", out)
    assert "step sizes are untuned" in ended.out
    last = ended.out.splitlines()[-1]
    assert last.startswith("next: ")
    assert f"fedpbc tune {out / 'compare.toml'}" in last
    own = "fedavg:learning_rate=0.1,mifa:learning_rate=0.2"
    ended = ran("compare", *given, "--algorithms", own, "--out", tmp_path / "own")
    assert "untuned" not in ended.out
    assert "fedpbc tune" not in ended.out
    # The page and the report of the same folder say the same.
    assert "untuned" not in (tmp_path / "own" / "report.html").read_text()
    assert "step sizes are untuned" in (out / "report.html").read_text()
