"""Plugins that fail in ways of their own are one line."""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.plugins import load_plugin
from tests.commandline import fedpbc, refused

SCHEME = """
import numpy as np
from fedpbc import link_scheme

@link_scheme
def own_links(setting{option}):
    for t in range(setting.rounds):
        {line}
        yield np.ones(setting.clients, dtype=bool)
"""


SET = {True: ("--set", "links.other=3"), False: ()}


@pytest.mark.parametrize(
    ("option", "line", "message"),
    [
        ("", "yield (np.ones(3, dtype=bool),)", "row 0 is a tuple"),
        (", *, other: torch.Tensor = None", "pass", "links.other is 3, but should be"),
    ],
)
def test_rows_and_options_of_no_known_kind(tmp_path, option, line, message):
    plugin = tmp_path / "own.py"
    plugin.write_text("import torch\n" + SCHEME.format(option=option, line=line))
    words = ("--plugin", plugin, "--links", "own_links", "--data", "digits", "--clients", "3")
    assert message in refused(fedpbc("run", *words, "--out", tmp_path / "out", *SET[bool(option)]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise SystemExit('no')", "line 8: SystemExit: no"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "line 8: Odd"),
    ],
)
def test_an_error_while_it_runs(tmp_path, line, message):
    plugin = tmp_path / "own.py"
    plugin.write_text(SCHEME.format(option="", line=line))
    words = ("--plugin", plugin, "--links", "own_links", "--data", "digits", "--clients", "3")
    assert refused(fedpbc("run", *words, "--out", tmp_path / "out")).endswith(message)
    assert not (tmp_path / "out").exists()


def test_a_plugin_that_exits_when_it_is_imported(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text("raise SystemExit(0)")
    assert "importable (SystemExit: 0)" in refused(fedpbc("list", "--plugin", plugin))


def test_a_default_that_cannot_be_kept_with_a_run(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(SCHEME.format(option=", *, other: object = object()", line="pass"))
    words = ("--plugin", plugin, "--links", "own_links", "--data", "digits", "--clients", "3")
    line = refused(fedpbc("run", *words, "--rounds", 2, "--out", tmp_path / "out"))
    assert line.startswith("links.other is a object: only numbers")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("parameters", ["self, init, factor", "self", "self, *, init"])
def test_an_algorithm_that_cannot_be_made(tmp_path, parameters):
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "from fedpbc import Algorithm, register_algorithm\n\n\n@register_algorithm\n"
        f"class Own(Algorithm):\n    name = 'own'\n    def __init__({parameters}): ...\n"
    )
    line = refused(fedpbc("list", "--plugin", plugin))
    assert line.endswith("__init__(self, init, *, option=default, ...)")
    assert ("has the positional option factor, but options are keyword-only" in line) == (
        parameters == "self, init, factor"
    )


ALGORITHM = """
import torch
from fedpbc import Algorithm, mean, register_algorithm

@register_algorithm
class Own(Algorithm):
    name = "own"

    def aggregate(self, round, updates):
        self.x = mean([u.end for u in updates])
        if round.number >= {first}:
            {line}
"""


@pytest.fixture
def run_own(tmp_path):
    """Run a custom algorithm that does something from a round on; returns the one line."""
    np.save(tmp_path / "targets.npy", np.array([[0.0, 1.0], [2.0, 5.0]]))
    config = tmp_path / "config.toml"
    config.write_text('rounds = 3\nlinks = "always"\n[task]\ntargets = "targets.npy"\n')

    def run(line: str, first: int = 0) -> str:
        plugin = tmp_path / "own.py"
        plugin.write_text(ALGORITHM.format(line=line, first=first))
        words = ("--plugin", plugin, "--algorithm", "own", "--out", tmp_path / "out")
        return refused(fedpbc("run", config, *words))

    return run


KIND = "but should be float64 of shape (2,) on cpu"


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("torch.zeros(0)", "float64 of shape (0,) on cpu"),
        ("self.x.new_zeros(7)", "float64 of shape (7,) on cpu"),
        ("self.x.reshape(1, -1)", "float64 of shape (1, 2) on cpu"),
        ("self.x.to_sparse()", "float64 of shape (2,) on cpu and sparse"),
        ("type('Odd', (), {'to': lambda self, dtype: self})()", "of type Odd"),
    ],
)
def test_a_model_that_changes_its_kind(run_own, tmp_path, model, found):
    line = run_own(f"self.x = {model}")
    assert line == f"own failed in round 1: its x is {found}, {KIND}"
    # As for every mistake that is found in the first round, nothing is written.
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["self.x.numpy()", "None", "3.0"])
def test_a_model_that_is_no_tensor(run_own, tmp_path, model):
    line = run_own(f"self.x = {model}")
    assert line.startswith(f"{tmp_path / 'own.py'} line 12: AttributeError: ")


def test_a_model_that_changes_its_kind_later_leaves_the_rounds_before(run_own, tmp_path):
    line = run_own("self.x = self.x.new_zeros(7)", first=2)
    assert line == f"own failed in round 3: its x is float64 of shape (7,) on cpu, {KIND}"
    assert (tmp_path / "out" / "metrics.jsonl").is_file()


def test_a_stop_iteration_is_told_with_its_place(run_own, tmp_path):
    # A generator of ours makes a RuntimeError of it.
    assert run_own("raise StopIteration") == f"{tmp_path / 'own.py'} line 12: StopIteration:"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "raise OSError(28, 'No space left on device', 'a\\x1b[31m')",
            "a\\x1b[31m: No space left on device",
        ),
        ("open('/nowhere/x')", "/nowhere/x: No such file or directory"),
    ],
)
def test_an_error_of_the_system_is_told_with_its_place(run_own, tmp_path, line, said):
    assert run_own(line) == f"{tmp_path / 'own.py'} line 12: {said}"


def test_a_scheme_that_yields_nothing_is_one_line(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "from fedpbc import link_scheme\n\n@link_scheme\ndef own_links(setting):\n    return None\n"
    )
    words = ("--plugin", plugin, "--links", "own_links", "--data", "digits", "--clients", "3")
    line = refused(fedpbc("run", *words, "--out", tmp_path / "out"))
    assert line == "links own_links returns a NoneType, but should yield one row per round"


@pytest.mark.parametrize("content", ["x = 1\n", "raise RuntimeError\n"])
def test_nothing_is_written_beside_a_plugin(content, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    plugin = tmp_path / "own.py"
    plugin.write_text(content)
    with suppress(InputError):
        load_plugin(str(plugin))
    assert list(tmp_path.iterdir()) == [plugin]
    assert not sys.dont_write_bytecode
