"""Options of the command line reach the configuration."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from fedpbc.cli.options import RUN_OPTIONS, config_options
from fedpbc.errors import InputError
from fedpbc.experiments.comparison_plan import plan_comparison
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import chosen_tables, configuration_values
from fedpbc.experiments.settings import command_options

SETTINGS = {option.name: option for option in command_options()}
VALUES = {int: 7, float: 0.25, str: "given", list: "a,b"}


def test_run_has_every_option_of_the_configuration():
    assert set(RUN_OPTIONS) == {*SETTINGS, "trace", "plugin"}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_option_sets_its_key(name):
    received = []

    @config_options(name)
    def command(options: dict[str, object]) -> None:
        received.append(options)

    option = SETTINGS[name]
    command(**{name: VALUES[option.type]})
    value = ["a", "b"] if option.type is list else VALUES[option.type]
    assert received == [{option.key: value}]
    section, _, last = option.key.rpartition(".")
    values = configuration_values(None, received[0])
    assert (values[section] if section else values) == {last: value}
    # What is not given sets nothing.
    command(**{name: None})
    assert received[1] == {}


def test_plugins_and_the_commands_own_parameters():
    received = []

    @config_options("rounds", "plugin")
    def command(options: dict[str, object], out: str = "x") -> None:
        received.append((options, out))

    assert list(inspect.signature(command).parameters) == ["rounds", "plugin", "out"]
    command(rounds=None, plugin=[Path("a.py")], out="y")
    assert received == [({"plugins": ["a.py"]}, "y")]


def test_the_later_outranks(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("rounds = 5\nseed = 5\nclients = 5\n")
    values = configuration_values(file, {"rounds": 6, "seed": 6}, ["rounds=7"])
    assert values == {"rounds": 7, "seed": 6, "clients": 5}


def test_a_python_task_is_for_python():
    with pytest.raises(InputError, match=r"^task.name is 'python', but should be 'classification'"):
        Config.from_dict({"task": {"name": "python"}})


@pytest.mark.parametrize(
    "tables", [{}, {"ceiling": {"rounds": 5}}, {"fedavg": {"rounds": 6}}, {"ceiling:rounds=5": {}}]
)
def test_the_ceilings_name_is_the_option(tables):
    """But that the option alone also adds a ceiling where the file has none."""
    named = chosen_tables(["fedau", "ceiling"], {"fedau": {"cutoff": 5}, **tables})
    chosen = chosen_tables(["fedau"], {"fedau": {"cutoff": 5}, **tables}, ceiling=True)
    assert named == {"ceiling": {}, **chosen}


def test_names_choose_among_the_entries_of_a_file(tmp_path):
    file = tmp_path / "tuned.toml"
    file.write_text("[algorithms.fedau]\ncutoff = 7\n[algorithms.mine]\nname = 'mifa'\n")
    values = configuration_values(file, {"algorithms": ["mine", "fedau", "fedpbc", "ceiling"]})
    assert values["algorithms"] == {
        "mine": {"name": "mifa"},
        "fedau": {"cutoff": 7},
        "fedpbc": {},
        "ceiling": {},
    }
    plan = plan_comparison({**values, "data": "digits", "clients": 4, "rounds": 1}, lenient=True)
    assert [plan.algorithm_of(label) for label in plan.entries] == [
        *("mifa", "fedau", "fedpbc", "fedavg")
    ]
    assert plan.entries["fedau"].options == {"cutoff": 7}
    with pytest.raises(InputError, match="different names"):
        configuration_values(file, {"algorithms": ["fedau", "fedau"]})
