"""Tables of all commands in terminals of different widths: whole, and no wider than those."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedpbc import Config
from fedpbc.cli import terminal
from fedpbc.cli.advise import show_advice
from fedpbc.cli.links import show_links
from fedpbc.cli.list import describe
from fedpbc.cli.results import show_summary
from fedpbc.cli.theory import show_theory_summary
from fedpbc.experiments.advice.directory import AdviceDirectory
from fedpbc.experiments.link_query import report_links
from fedpbc.experiments.theory_query import TheoryQuery, analyze
from fedpbc.experiments.tuning.result import Score, TrialResult, TunedEntry
from fedpbc.paper.result_table import ResultTable, TableEntry
from fedpbc.report.listing import list_choices
from fedpbc.report.text_table import TextTable
from fedpbc.report.tuning import tuning_table
from tests.synthetic_advice import synthetic_advice

WIDTHS = (120, 80, 60)
BOLD = re.compile("\x1b\\[1m")
STYLE = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture
def tables(monkeypatch):
    """What a function prints as tables in a terminal of a width; None: it is no terminal."""

    def printed(width: int | None, function, *arguments) -> str:
        files: list[io.StringIO] = []

        def open_console(*, min_width: int = 0, **_) -> Console:
            files.append(io.StringIO())
            own = max(80 if width is None else width, min_width)
            return Console(file=files[-1], width=own, force_terminal=width is not None)

        monkeypatch.setattr(terminal, "open_console", open_console)
        function(*arguments)
        return "".join(file.getvalue() for file in files)

    return printed


def assert_fits(text: str, width: int) -> None:
    lines = STYLE.sub("", text).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "…" not in text.replace(" … ", "")


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in STYLE.sub("", text).splitlines()]


def bold_rows(text: str) -> list[str]:
    """The first words of bold rows below the headings."""
    _, _, body = text.partition("──")
    return [STYLE.sub("", line).split()[0] for line in body.splitlines() if BOLD.search(line)]


def trial(rate: float, score: float | None, **more) -> TrialResult:
    found = None if score is None else Score(score, "corrected", 90, 0.012)
    return TrialResult({"train.learning_rate": rate, **more}, found, 90)


@pytest.fixture
def search():
    """A search with a ceiling, which is no candidate, and with long settings."""
    long = {"algorithm.memory": "client", "algorithm.over": "heard"}
    fedau = [trial(0.1, 0.7, **dict.fromkeys(long, "")), trial(0.2, 0.75, **long), trial(9.0, None)]
    entries = [
        TunedEntry("fedavg", [trial(0.1, 0.5), trial(0.2, 0.6)]),
        TunedEntry("fedau", fedau, "fedau:local_steps=20"),
        TunedEntry("fedavg", [trial(0.1, 0.9)], "ceiling"),
    ]
    return SimpleNamespace(entries=entries, has_classes=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_search(tables, search, width):
    left_out: list[str] = []
    text = tables(width, lambda: left_out.extend(terminal.show_fitted(tuning_table(search))))
    assert_fits(text, width)
    assert "75.0 ± 1.2" in text
    assert left_out == {120: [], 80: ["diverged"], 60: ["default", "tried", "diverged"]}[width]
    assert bold_rows(text)[0].startswith("fedau")


def test_without_a_terminal_a_table_is_whole(tables, search):
    text = tables(None, lambda: terminal.show_fitted(tuning_table(search)))
    assert any(
        line.startswith("fedau:local_steps=20 η_0 0.2, memory client") for line in words(text)
    )
    assert "diverged" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_advice(tables, capsys, tmp_path, width):
    text = tables(width, show_advice, synthetic_advice(tmp_path), AdviceDirectory(tmp_path))
    assert_fits(text, width)
    assert bold_rows(text) == ["fedpbc"]
    missing = {120: "", 80: "bytes up ×, models on server, on client;"}
    narrow = "not shown, as the terminal is narrow: " + missing.get(width, "test %, local steps ×,")
    said = " ".join(capsys.readouterr().out.split())
    assert (narrow in said) == (width < 100)
    assert ("78.0 (75.5 to 80.5)" in text) == (width > 60)


@pytest.mark.parametrize("width", WIDTHS)
def test_links(tables, width):
    config = Config.from_dict({"links": "markov", "clients": 20, "rounds": 300, "data": "digits"})
    text = tables(width, show_links, report_links(config))
    assert_fits(text, width)
    assert "autocorrelation" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_theory(tables, capsys, width):
    summary = analyze(TheoryQuery(options={"links.name": "bernoulli"}, clients=20))
    text = tables(width, show_theory_summary, summary)
    assert_fits(text, width)
    assert "staleness" in text
    assert ("--out FILE.csv has them" in capsys.readouterr().out) == (width < 100)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_with_metrics_of_ones_own(tables, capsys, width):
    metrics = {"balanced_accuracy": 0.5123, "macro_f1": 0.4711, "recall_of_2": 0.3377}
    evaluation = {"test_accuracy": 0.5, "train_accuracy": 0.6, "test_loss": 1.25, **metrics}
    summary = {
        **dict.fromkeys(("algorithm", "links", "data", "engine"), "x"),
        "rounds": 3,
        "seconds": 1.0,
        "views": {"corrected": evaluation},
        "cost": {"local_steps": 15, "uploads": 2, "models_on_server": {"corrected": 1_000}},
    }
    text = tables(width, show_summary, summary, Path("run"))
    assert_fits(text, width)
    assert "50.0" in text
    for value in metrics.values():
        assert str(value) in text
    narrow = "not shown, as the terminal is narrow: "
    assert (narrow in capsys.readouterr().out) == (width < 100)
    assert "1000" in tables(None, show_summary, summary, Path("run"))


PAPER = ResultTable(
    "accuracy, %",
    ["links", "algorithm", *(f"{data} {split} %" for data in "abc" for split in ("train", "test"))],
    [
        ["bernoulli_varying", "fedpbc", *[TableEntry("66.3 ± 0.4", 1)] * 6],
        ["always", "mifa†", *"123456"],
    ],
    ["a note."],
)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_the_paper(width):
    text = PAPER.terminal(width)
    assert_fits(text, width)
    assert text.count("66.3 ± 0.4 ¹") == 6
    # In parts, each of which says what its rows are about.
    assert text.count("mifa†") == {120: 1, 80: 2, 60: 3}[width]
    assert text.count("a note.") == 1


def test_a_table_of_the_paper_is_whole_without_a_terminal():
    assert PAPER.terminal() == PAPER.terminal(1000)


def test_a_long_name_is_broken_in_the_heading_and_whole_in_the_note():
    table = TextTable()
    table.column("view")
    table.column("balanced_\naccuracy", right=True, rank=1)
    table.row("server", 0.5)
    assert table.fit(80) == []
    assert table.fit(10) == ["balanced_accuracy"]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_choices(width):
    for entry in (entry for entries in list_choices().values() for entry in entries):
        lines = describe(entry, width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert all(line.startswith(21 * " ") for line in lines[1:])
        assert words(describe(entry)) == [" ".join(" ".join(lines).split())]


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_a_long_sentence_is_broken_between_words(tables, capsys, width):
    sentence = "verdict: " + " ".join(f"{k}-word" for k in range(60)) + " " + "x" * 130
    tables(width, terminal.say_sentence, sentence)
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines) == sentence
    if width is None:
        assert len(lines) == 1
    else:
        assert max(len(line) for line in lines[:-1]) <= width
