"""The table of a comparison in terminals of different widths."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedpbc.cli import terminal
from fedpbc.cli.results import show_comparison, show_summary
from fedpbc.experiments.comparison_directory import ComparisonDirectory
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
NARROW = "fedpbc corrected 50.0 ± 14.1 1,234 16 16 91 1"


@pytest.mark.parametrize(("width", "row"), [(120, FULL), (None, FULL), (80, NARROW)])
def test_the_table_fits_the_terminal(shown, width, row):
    lines = shown(width)
    [found] = [line for line in lines if "corrected" in line]
    assert " ".join(found.split()) == row
    assert len(found) <= (width or 120)
    narrow = "not shown, as the terminal is narrow: train %, worst class %; table.md has them."
    assert (narrow in lines) == (width == 80)
    # What the left-out column means is not explained.
    assert any(line.startswith("train % is") for line in lines) == (width != 80)


def test_no_number_is_cut_off_in_a_very_narrow_terminal(shown):
    [found] = [line for line in shown(40) if "corrected" in line]
    assert " ".join(found.split()) == NARROW


def test_a_table_without_classes_has_nothing_to_leave_out(shown):
    lines = shown(30, classes=False)
    assert not any("not shown" in line for line in lines)
    [found] = [line for line in lines if "corrected" in line]
    assert " ".join(found.split()) == "fedpbc corrected 1.5 ± 0.141 1,234 16 16 91 1"


DIFFERENCE = "mifa† 0.0 (−127.1 to 127.1), 1/2 1.00 1.00"
"""0.4 and 0.6 against 0.5: 0 ± 12.706 × 14.14/√2 points."""


@pytest.mark.parametrize("width", [120, None, 80, 40])
def test_the_verdict_is_right_below_the_table_and_the_differences_fit(shown, width):
    lines = shown(width)
    [verdict] = [k for k, line in enumerate(lines) if line.startswith("verdict: ")]
    assert "over 2 seeds" in lines[verdict]
    # What show() prints is before what say() prints here, in a terminal it is in order.
    found = [line for line in lines if "(−127.1 to 127.1)" in line]
    [row] = [" ".join(line.split()) for line in found if line.lstrip().startswith("mifa")]
    narrow = width is not None and width <= 80
    full = f"mifa† server 50.0 (50.0 to 50.0) {DIFFERENCE[6:]} 101 0"
    assert row == (DIFFERENCE if narrow else full)
    assert all(len(line) <= max(width or 120, 80) for line in found if line.startswith(" "))
    # What a column means that is not shown is not explained.
    assert any(line.startswith("test % here") for line in lines) == (not narrow)


def test_one_seed_says_so(shown):
    lines = shown(100, seeds=1)
    assert any(line.startswith("verdict: from one seed nothing can be told") for line in lines)
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
