"""The progress bar of Python: in a notebook, in a terminal, and as a log elsewhere."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from fedpbc import Quadratic, compare, simulate
from fedpbc.python import progress_bar
from fedpbc.python.progress_bar import ProgressBar, in_notebook


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ZMQInteractiveShell:
    """Named as the shell of a Jupyter kernel."""


@pytest.fixture
def cells(monkeypatch):
    """A notebook: what its cell shows, one text after another."""
    shown: list[str] = []

    class Handle:
        def update(self, content):
            shown.append(content)

    def display(content, display_id):
        shown.append(content)
        return Handle()

    package = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    return shown


def work(bar: ProgressBar, clock: list[float]) -> None:
    with bar:
        for done in range(1, 11):
            clock[0] += 1
            bar.update(done, f"{done}0.0 %")


def test_in_a_notebook_one_display_is_updated(cells, clock):
    assert in_notebook()
    work(ProgressBar("a <b>", 10), clock)
    assert len(cells) == 11
    assert cells[0] == (
        '<progress max="1" value="0.100"></progress> a &lt;b&gt; 10.0 %, about 9 s left'
    )
    assert cells[-1] == " a &lt;b&gt;: done after 10 s"


def test_in_a_notebook_an_error_is_said(cells, clock):
    def interrupted():
        with ProgressBar("rounds", 10) as bar:
            clock[0] += 3
            bar.update(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert cells[-1] == " rounds: stopped after 3 s"


def test_not_more_often_than_eyes_can_follow(cells, clock):
    with ProgressBar("rounds", 1000) as bar:
        for done in range(1000):
            clock[0] += 0.01
            bar.update(done)
    # Ten seconds, five times each.
    assert 45 <= len(cells) <= 51


def test_in_a_terminal_there_is_a_bar_that_goes_away(monkeypatch, clock):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not in_notebook()
    bar = ProgressBar("rounds [b]", 10)
    with bar:
        clock[0] += 1
        bar.update(5, "75.0 %")
        assert bar._rich.tasks[0].completed == 5
        bar._rich.refresh()
        assert "rounds [b]" in stream.getvalue()
        assert "50 % 75.0 % left" in stream.getvalue()
    # The line is erased at the end.
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("stream", [io.StringIO(), None], ids=["a file", "no stream"])
def test_elsewhere_there_are_records_of_a_log(monkeypatch, clock, caplog, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    caplog.set_level("INFO", "fedpbc.progress")
    with ProgressBar("rounds", 100) as bar:
        for done in range(1, 101):
            clock[0] += 1
            bar.update(done, f"{done}.0 %")
    # Not printed: a script that wants them sets up logging.
    assert stream is None or stream.getvalue() == ""
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == [
        "10 %: rounds, 10.0 %, about 90 s left",
        "20 %: rounds, 20.0 %, about 80 s left",
    ]
    assert len(said) == 9
    caplog.clear()
    work(ProgressBar("rounds", 10, shown=False), clock)
    assert caplog.records == []


def test_shown_or_hidden_by_hand(cells, clock):
    work(ProgressBar("rounds", 10, shown=False), clock)
    assert cells == []
    work(ProgressBar("rounds", 10, shown=True), clock)
    assert len(cells) == 11


def test_runs_and_comparisons_have_one(cells, monkeypatch):
    monkeypatch.setattr(progress_bar, "REFRESH_SECONDS", 0.0)

    def make_task(seed=0):
        return Quadratic([[0.0], [9.0]], seed=seed)

    simulate(make_task(), "fedavg", "always", rounds=4)
    assert "fedavg" in cells[0]
    assert "done after" in cells[-1]
    cells.clear()
    compare(make_task, ["fedavg", "mifa"], [0], links="always", rounds=4)
    assert cells[0].startswith('<progress max="1"')
    assert "2 runs mifa, 2 finished" in cells[-2]
    cells.clear()
    simulate(make_task(), "fedavg", "always", rounds=4, progress=False)
    assert cells == []
