"""The help of every command: what each argument and option means is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from fedpbc.cli.app import command_tree


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *path, name)


COMMANDS = dict(commands(command_tree()))


def words(text: str) -> str:
    """Without the frames and line breaks of a terminal."""
    return re.sub(r"[\s│]+", " ", text)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_every_argument_and_option_is_shown(path, capsys, monkeypatch):
    # Wide enough for every cell: columns that wrap would mix their words.
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("TERMINAL_WIDTH", "1000")
    command_tree()([*path, "--help"], prog_name="fedpbc", standalone_mode=False)
    shown = words(capsys.readouterr().out)
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "hidden", False):
            continue  # An earlier name of an option.
        text = getattr(parameter, "help", None)
        assert text, f"{parameter.name} has no help"
        assert words(text).strip() in shown, parameter.name


def test_arguments_have_their_help():
    """Where a library hides them all, the test above would have little to look for."""
    arguments = [
        parameter
        for command in COMMANDS.values()
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    assert len(arguments) > 10
    assert all(getattr(parameter, "help", None) for parameter in arguments)
