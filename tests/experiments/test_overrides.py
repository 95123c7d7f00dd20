"""What was given on the command line arrives."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from fedpbc.experiments.configuration import General
from fedpbc.experiments.overrides import gathered
from tests.commandline import cli  # type: ignore[attr-defined]

KEYS = {field.name for field in fields(General)}


@pytest.mark.parametrize("command", [cli.run, cli.compare])  # type: ignore[attr-defined]
def test_every_option_that_is_a_key_is_passed_on(command):
    options = KEYS & inspect.signature(command).parameters.keys()
    assert {"rounds", "engine", "workers", "ray_address", "device", "reported"} <= options
    for name in options - {"views", "track"}:
        assert gathered(None, None, {name: "given"}) == {name: "given"}
    assert gathered(None, None, {"views": "server,mean"}) == {"views": ["server", "mean"]}
