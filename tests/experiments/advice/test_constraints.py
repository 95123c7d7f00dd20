from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.advice.constraints import Constraints


def row(steps=100, server=1, client=0):
    return SimpleNamespace(local_steps=steps, models_on_server=server, models_on_client=client)


def test_what_is_too_much():
    assert Constraints().allows(row(10**9, 10**6, 9))
    assert Constraints(max_server_models=2).violated(row(server=3)) == "3 models on the server"
    assert Constraints(max_server_models=2).allows(row(server=2))
    assert Constraints(max_local_steps=99).violated(row()) == "100 local steps"
    assert Constraints(client_state=False).violated(row(client=1)) == "state on the devices"
    assert Constraints(client_state=False).allows(row())


def test_limits_in_words():
    limits = Constraints(max_server_models=2, max_local_steps=1000, client_state=False)
    assert limits.described() == [
        "at most 2 models on the server",
        "at most 1,000 local steps",
        "no state on the devices",
    ]
    assert Constraints().described() == []


@pytest.mark.parametrize("name", ["max_server_models", "max_local_steps"])
def test_a_limit_of_nothing(name):
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is 0"):
        Constraints(**{name: 0})
