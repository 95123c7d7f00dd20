"""Plugins that fail in ways of their own are one line."""

from __future__ import annotations

import pytest

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
    assert line.endswith("should be __init__(self, init, *, option=default, ...)")
