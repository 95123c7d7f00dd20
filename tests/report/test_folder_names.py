"""Folders whose names are not UTF-8, or have characters that a terminal would obey."""

from __future__ import annotations

import os
import sys

import pytest

from tests.commandline import DIGITS, ran
from tests.synthetic_runs import write_grid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="any bytes are a name on Linux")

NAME = os.fsdecode(b"b\xffd \x1b[31m")


def test_a_report_about_a_folder_whose_name_is_not_utf_8(tmp_path):
    folder = tmp_path / NAME
    write_grid(folder)
    (folder / "compare.toml").write_text("seeds = [0, 1, 2]\n[algorithms.fedpbc]\n")
    out = ran("report", folder).out
    assert "b\\xffd \\x1b[31m/report.html' (4 finished, 1 not begun" in out
    page = (folder / "report.html").read_text(encoding="utf-8")
    # The command to resume can be pasted into a shell; the template escapes the quotes.
    assert "fedpbc resume $&#39;" in page
    assert "b\\xffd \\x1b[31m&#39;" in page


@pytest.mark.slow
def test_a_comparison_in_a_folder_whose_name_is_not_utf_8(tmp_path):
    folder = tmp_path / NAME / "c"
    given = (*DIGITS, "--rounds", 2, "--algorithms", "fedavg,fedpbc", "--seeds", 0, "--jobs", 1)
    for command in (["compare", *given, "--out", folder], ["resume", folder]):
        out = ran(*command).out
        assert "b\\xffd \\x1b[31m/c/report.html': the whole report" in out
        assert "\x1b" not in out
    for name in ("report.html", "table.md", "comparison.json"):
        assert (folder / name).read_text(encoding="utf-8")
    run = folder / "fedavg" / "seed-0"
    assert ran("resume", run).out
    assert ran("resume", run, "--json").out.isascii()
