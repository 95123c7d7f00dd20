"""Every command that writes has its scenarios, and every scenario its kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fedpbc.cli.app import command_tree
from fedpbc.paper.catalog import EXPERIMENTS
from tests.faults.scenarios import ELSEWHERE, READERS, SCENARIOS, SLOW_SCENARIOS
from tests.faults.test_kills import KILLS


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands below one: "run", "fleet add", …, and for the paper each experiment."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, f"{path} {name}".strip())
    elif path == "paper":
        yield from ((f"paper {name}", command) for name in EXPERIMENTS)
    else:
        yield path, command


COMMANDS = dict(commands(command_tree()))


def stands_for(scenario: str, command: str) -> bool:
    """Whether a scenario is one of a command, by its name."""
    return f"{scenario} ".startswith((f"{command} ", f"{command},"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_a_scenario_or_a_reason_for_none(command):
    covered = [any(stands_for(name, command) for name in SCENARIOS | SLOW_SCENARIOS)]
    covered += [command in READERS, command in ELSEWHERE]
    assert sum(covered) == 1


def test_all_that_is_excepted_exists():
    assert {*READERS, *ELSEWHERE} <= {*COMMANDS}
    assert all(Path(file).is_file() for file in ELSEWHERE.values())


def test_commands_that_replace_have_a_scenario_for_it():
    for name, command in COMMANDS.items():
        options = {word for option in command.params for word in option.opts}
        if "--overwrite" in options:
            # All experiments that consist of runs replace them in the same way.
            name = "paper table1" if name.startswith("paper ") else name
            assert f"{name} --overwrite" in SCENARIOS


def test_every_scenario_is_killed():
    assert {*KILLS} == {*SCENARIOS, *SLOW_SCENARIOS}
    assert sum(KILLS.values()) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("command", [["list"], ["verify", "{}/run"], ["fleet", "status", "{}/run"]])
def test_readers_need_no_disk_that_can_be_written_to(faulty, undisturbed, tmp_path, command):
    """And so they write nothing."""
    scenario, before, _ = undisturbed("fleet leave" if "fleet" in command else "report")
    folder = scenario.copied(before, tmp_path / "folder")
    ended = faulty.run(*scenario.arguments(folder, command), fault=f"read-only 1 {folder}")
    assert (ended.code, ended.err, faulty.calls) == (0, "", 0)
