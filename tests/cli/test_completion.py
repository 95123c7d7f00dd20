"""What a shell offers when it completes a command line; the script that asks is Typer's."""

from __future__ import annotations

import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.cli import app
from fedpbc.cli.list import KINDS
from fedpbc.paper.catalog import EXPERIMENTS
from tests.commandline import fedpbc


@pytest.fixture
def completed(monkeypatch):
    """The words that bash would offer for the last one of a line."""

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_FEDPBC_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        ended = fedpbc()
        assert (ended.code, ended.err) == (0, "")
        return ended.out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("fedpbc com", ["compare"]),
        ("fedpbc run --algorithm fedp", ["fedpbc"]),
        ("fedpbc run --links markov", ["markov", "markov_varying"]),
        ("fedpbc run --data dig", ["digits"]),
        ("fedpbc run --model cnn_ci", ["cnn_cifar10", "cnn_cinic10"]),
        ("fedpbc compare --algorithms fedpbc,mi", ["fedpbc,mifa", "fedpbc,mimic"]),
        ("fedpbc tune --algorithms fedavg,scaf", ["fedavg,scaffold"]),
        ("fedpbc paper table", ["table1", "table2"]),
        ("fedpbc paper table1 --algorithms f3", ["f3ast"]),
        ("fedpbc paper table1 --links cyc", ["cyclic", "cyclic_reset"]),
        ("fedpbc paper table1 --data dig", ["digits"]),
    ],
)
def test_names_are_completed(completed, line, names):
    assert sorted(completed(line)) == names


def test_all_names_of_a_kind_are_offered(completed):
    assert completed("fedpbc run --algorithm ") == list(ALGORITHMS)
    assert set(completed("fedpbc paper ")) >= set(EXPERIMENTS)
    assert set(completed("fedpbc list ")) >= set(KINDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_asks_this_command(monkeypatch, shell):
    import shellingham

    # Otherwise the script is that of the shell that runs the tests, if it is a shell that does.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    # Typer reads it when it builds the commands.
    monkeypatch.setattr(app, "command_tree", app.command_tree.__wrapped__)
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))
    ended = fedpbc("--show-completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert f"_FEDPBC_COMPLETE=complete_{shell}" in ended.out


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_that_is_not_known_is_one_line(option, monkeypatch):
    import shellingham

    def fail() -> None:
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", fail)
    ended = fedpbc(option)
    assert ended.code == 2
    assert ended.err.startswith("fedpbc: completion is not available for this shell: run it from")
    assert ended.err.count("\n") == 1
