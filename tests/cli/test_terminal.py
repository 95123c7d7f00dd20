"""What reaches the terminal: bounded lines without control characters, whatever is in them."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedpbc.algorithms import ALGORITHMS, FedAvg
from fedpbc.cli import terminal
from fedpbc.cli.progress import GridDisplay, RunDisplay
from fedpbc.cli.results import show_summary
from fedpbc.experiments.sweep import GridProgress
from fedpbc.paper.catalog import ProgressRow
from tests.commandline import COMMAND, Ended, fedpbc, ran, refused
from tests.synthetic_runs import write_run

HOSTILE = "x[/b]\x1b[31m\u202e" + 5000 * "y" + "\n\x9b2J"


def assert_clean(text: str) -> None:
    """Assert that every line is bounded and can be seen."""
    for line in text.split("\n"):
        assert len(line) <= terminal.LINE_LIMIT + 20
        assert not {unicodedata.category(c) for c in line} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def test_only_one_module_prints():
    """What is written to a stream directly is read here; print itself is ruff's T20."""
    sources = Path(terminal.__file__).parent
    for file in sources.glob("*.py"):
        if file.name not in ("terminal.py", "__init__.py"):
            text = file.read_text(encoding="utf-8")
            for word in ("print(", "sys.stderr", "stdout.write", "Console(", "typer.echo"):
                lines = [line for line in text.splitlines() if word in line]
                lines = [line for line in lines if "def print(" not in line]
                lines = [line for line in lines if "self.print(" not in line]
                lines = [line for line in lines if "(sys.stdout, sys.stderr)" not in line]
                lines = [line for line in lines if "console.print(plain(" not in line]
                assert not lines, (file.name, lines)


@pytest.mark.parametrize("function", [terminal.say, terminal.say_text, terminal.note])
def test_lines_are_clean(function, capsys):
    function(HOSTILE)
    shown = capsys.readouterr()
    assert "\\x1b[31m\\u202e" in shown.out + shown.err
    assert_clean(shown.out + shown.err)


def test_a_complaint_is_one_line(capsys):
    assert terminal.complain(HOSTILE, 7) == 7
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1
    assert_clean(shown)


def test_the_layout_of_a_line_stays(capsys):
    terminal.say("  name     summary  [a=1]")
    assert capsys.readouterr().out == "  name     summary  [a=1]\n"


def test_json_is_ascii(capsys):
    value = {"a\x7f\u202e\udcff": "\x1b[31mη"}
    terminal.say_json(value)
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert text.isascii()
    assert json.loads(text) == value


def test_paths_can_be_pasted(capsys):
    terminal.say_written(["runs/a", "my runs/\x1b"], " (all)")
    written = "written: runs/a\n         $'my runs/\\x1b' (all)\n"
    assert capsys.readouterr().out == written
    long = "folder/" * 60
    terminal.say_written([long])
    assert capsys.readouterr().out == f"written: {long}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
@pytest.mark.parametrize(
    "name", ["a b", "it's", "\x1b[31m", "b\udcff", "new\nline", "$HOME", "\\x"]
)
def test_a_shell_reads_a_command_as_it_was_meant(name):
    line = terminal.command("printf", "%s", name)[1:-1]
    shown = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert os.fsdecode(shown) == name


SUMMARY = {
    "algorithm": HOSTILE,
    "links": HOSTILE,
    "data": HOSTILE,
    "engine": HOSTILE,
    "rounds": 3,
    "seconds": 1.0,
    "views": {HOSTILE: {"test_loss": 1e308, "test_accuracy": None, HOSTILE: 1.0, "list": [1]}},
    "cost": {"local_steps": 1, "uploads": 2, "models_on_server": {}},
}


def test_a_summary_is_shown_clean(capsys):
    show_summary(SUMMARY, Path("a\x1b[31m"))
    shown = capsys.readouterr().out
    assert "x[/b]\\x1b" in shown
    assert "next: `fedpbc report $'a\\x1b[31m'`" in shown
    assert_clean(shown)


class Terminal(Console):
    """A console that believes to be in a terminal, and keeps what it shows."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), force_terminal=True, record=True)


def test_progress_displays_take_any_name(monkeypatch):
    console = Terminal()
    monkeypatch.setattr(terminal, "open_console", lambda **options: console)
    row = ProgressRow("x[/b]\x1b[31m", 10, 1)
    with GridDisplay([row], Path("a\x1b[31m"), quiet=False) as grid:
        grid.on_progress(GridProgress(0, 1, 0.5))
        grid.on_progress(GridProgress(0, 1, note="[/b]\x1b[31m"))
        grid.on_progress(GridProgress(0, 1, failure="[/b]\x1b[31m"))
    with RunDisplay(Path("[/b]\x1b[31m"), quiet=False) as run:
        run.on_start(0, 3, "[/b]\x1b[31m")
        run.progress.update(run.task, note="[/b]")
        run.progress.refresh()
    shown = console.export_text()
    assert "note: x[/b]\\x1b[31m: [/b]\\x1b[31m" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--set", "a\x1b[31m\u202e=1"),
        ("run", "--rounds", HOSTILE),
        ("run", f"--{HOSTILE}"),
        (HOSTILE,),
        ("resume", "no\x1b[31m\udcff[/b]"),
        ("report", "no\x1b[31m\u202e"),
        ("run", "no\x1b[31m.toml"),
        ("theory", "--p", HOSTILE),
    ],
)
def test_arguments_come_back_clean(arguments):
    line = refused(fedpbc(*arguments))
    assert_clean(line)


@pytest.mark.parametrize("key", ['"a\\u001b[31m"', '"x[/b]"', '"\\u202e"'])
def test_keys_of_a_file_come_back_clean(tmp_path, key):
    file = tmp_path / "run.toml"
    file.write_text(f"{key} = 1\n")
    assert_clean(refused(fedpbc("run", file)))


PLUGIN = '''
import logging, warnings
from fedpbc import register_algorithm
from fedpbc.algorithms import FedAvg

warnings.warn("a plugin\\nwarns of \\x1b[31m")
warnings.warn("a plugin\\nwarns of \\x1b[31m")
library = logging.getLogger("library")
library.propagate = False  # The suite listens at the root.
library.warning("two\\nlines")

@register_algorithm
class Mine(FedAvg):
    """A \\x1b[31msummary [/b]."""
    name = "mine"

    def aggregate(self, round, updates):
        return 1 / 0
'''


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "plugin.py"
    file.write_text(PLUGIN)
    return file


@pytest.fixture
def _warnings_shown():
    """The suite turns warnings into errors; commands show them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


@pytest.mark.usefixtures("_warnings_shown")
def test_warnings_and_logs_of_libraries_are_one_note_each(plugin):
    ended = fedpbc("list", "--plugin", plugin)
    assert ended.code == 0
    assert ended.err == ("fedpbc: note: a plugin warns of \\x1b[31m\nfedpbc: note: two lines\n")
    [line] = [line for line in ended.out.splitlines() if line.startswith("  mine ")]
    assert line == "  mine               A \\x1b[31msummary [/b]."


@pytest.mark.usefixtures("_warnings_shown")
def test_the_program_around_keeps_its_own_handlers(plugin):
    before = warnings.showwarning, logging.lastResort
    fedpbc("list", "--plugin", plugin)
    assert (warnings.showwarning, logging.lastResort) == before


@pytest.mark.usefixtures("_warnings_shown")
def test_floating_point_warnings_say_nothing(monkeypatch):
    def overflow(*arguments: object) -> None:
        np.float32(3e38) * np.float32(3e38)

    monkeypatch.setattr("fedpbc.report.listing.list_choices", lambda: overflow() or {})
    assert ran("list").err == ""


@pytest.mark.usefixtures("_warnings_shown")
def test_an_error_in_a_plugin_names_its_line(tmp_path, plugin):
    given = ("--data", "digits", "--clients", 3, "--rounds", 3, "--links", "always")
    ended = fedpbc(
        "run", "--plugin", plugin, "--algorithm", "mine", *given, "--out", tmp_path / "r"
    )
    assert ended.code == 2
    line = ended.err.splitlines()[-1]
    assert line == f"fedpbc: {plugin} line 18: ZeroDivisionError: division by zero"


def test_an_error_of_ours_is_still_a_traceback(monkeypatch):
    monkeypatch.setattr("fedpbc.report.listing.list_choices", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fedpbc("list")


def test_names_that_matplotlib_would_interpret(tmp_path, monkeypatch):
    from fedpbc.experiments.comparison import Comparison
    from fedpbc.experiments.run_result import RunResult
    from fedpbc.report.plot import plot_comparison
    from tests.synthetic_runs import metrics

    name = "_$\\frac{$\x1b\udcff"
    monkeypatch.setitem(ALGORITHMS, name, FedAvg)
    lines = metrics("fedavg", 0, 4, 1, True, 4)
    plot_comparison(Comparison([RunResult(name, 0, 8, lines)]), tmp_path / "a.png", name)
    assert (tmp_path / "a.png").stat().st_size > 1000


def full(*arguments: object) -> Ended:
    """The command with its output on a full disk."""
    with Path("/dev/full").open("w") as disk:
        command = [COMMAND, *map(str, arguments)]
        ended = subprocess.run(command, stdout=disk, stderr=subprocess.PIPE, text=True)
    return Ended(ended.returncode, "", ended.stderr)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux")
def test_output_to_a_full_disk_is_one_line(tmp_path):
    write_run(tmp_path / "run")
    assert refused(full("list")) == "standard output: No space left on device"
    assert "No space left on device" in refused(full("report", tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="shell")
def test_output_that_is_closed_is_no_traceback():
    ended = subprocess.run(["sh", "-c", f"{COMMAND} list >&- 2>&-"], check=False)
    assert ended.returncode == 0
