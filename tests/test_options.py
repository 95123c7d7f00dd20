"""Options are read from a signature and checked; errors are one line."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from annotated_types import Ge, Le

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import DivergedError, InputError
from fedpbc.options import Form, check_type, checked, nearest, options_of


def scheme(
    setting,
    *,
    cutoff: Annotated[int, Ge(1)] = 50,
    gamma: Annotated[float, Ge(0), Le(1)] = 0.4,
    rescale: bool = False,
    kind: Literal["a", "b"] = "a",
    name: str = "x",
    period: float | None = None,
    free=None,
): ...


def required_options(setting, *, path: str, count: int): ...


def test_a_tensor_without_data_is_no_number():
    with pytest.raises(InputError, match=r"cutoff is .*, but should be"):
        checked(scheme, {"cutoff": torch.zeros((), device="meta")}, "links")


DEFAULTS = {
    "cutoff": 50,
    "gamma": 0.4,
    "rescale": False,
    "kind": "a",
    "name": "x",
    "period": None,
    "free": None,
}


def test_defaults_are_filled_in():
    assert checked(scheme, {}, "links") == DEFAULTS


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cutoff", 1),
        ("gamma", 0.0),
        ("gamma", 1),
        ("rescale", True),
        ("kind", "b"),
        ("name", ""),
        ("period", 3.5),
        ("period", None),
        ("free", object),
    ],
)
def test_valid_values_are_accepted(option, value):
    values = checked(scheme, {option: value}, "links")
    assert values == {**DEFAULTS, option: value}


def test_a_whole_number_is_a_number():
    assert type(checked(scheme, {"gamma": 1}, "links")["gamma"]) is float


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("cutoff", 0, "is 0, but should be at least 1"),
        ("cutoff", 1.5, "is 1.5, but should be a valid integer"),
        ("cutoff", "3", "is '3', but should be a valid integer"),
        ("cutoff", True, "is True, but should be a valid integer"),
        ("cutoff", None, "is None, but should be a valid integer"),
        ("gamma", 1.01, "is 1.01, but should be at most 1"),
        ("gamma", -0.1, "is -0.1, but should be at least 0"),
        ("gamma", float("nan"), "is nan, but should be a finite number"),
        ("gamma", float("inf"), "is inf, but should be a finite number"),
        ("gamma", "0.5", "is '0.5', but should be a valid number"),
        ("gamma", True, "is True, but should be a valid number"),
        ("rescale", 1, "is 1, but should be a valid boolean"),
        ("rescale", "yes", "is 'yes', but should be a valid boolean"),
        ("kind", "c", "is 'c', but should be 'a' or 'b'"),
        ("name", 3, "is 3, but should be a valid string"),
        ("period", float("-inf"), "is -inf, but should be a finite number"),
        ("period", [1], "is [1], but should be a valid number"),
    ],
)
def test_wrong_values_are_one_line(option, value, message):
    with pytest.raises(InputError) as error:
        checked(scheme, {option: value}, "links")
    assert str(error.value) == f"links.{option} {message}"


def test_an_option_of_several_types_names_all_its_forms():
    """The bounds of one of them alone are not what would be right."""
    share = Annotated[float, Ge(0), Le(1)]
    forms = share | list[share] | Annotated[str, Form("a file")] | None
    line = "p is 1.5, but should be a number from 0 to 1, a list of numbers from 0 to 1 or a file"
    for wrong in (1.5, [1.5], {}):
        with pytest.raises(InputError, match=f"^{re.escape(line.replace('1.5', repr(wrong), 1))}$"):
            check_type("p", wrong, forms)
    several = Annotated[int, Ge(2)] | list[str] | bool
    line = "n is 1, but should be a whole number at least 2, a list of texts or true or false"
    with pytest.raises(InputError, match=f"^{line}$"):
        check_type("n", 1, several)


@pytest.mark.parametrize("value", ["two\nlines", {"a": "\n"}, [1] * 3, np.zeros((3, 3))])
def test_the_message_stays_one_line_whatever_was_given(value):
    with pytest.raises(InputError) as error:
        checked(scheme, {"cutoff": value}, "links")
    assert "\n" not in str(error.value)


def test_unknown_options():
    with pytest.raises(InputError, match=r"^links\.gama is unknown: .*did you mean 'gamma'\?$"):
        checked(scheme, {"gama": 1}, "links")
    with pytest.raises(InputError, match=r"^links\.zzz is unknown: use one of cutoff, "):
        checked(scheme, {"zzz": 1}, "links")
    with pytest.raises(InputError, match="there are no options here"):
        checked(lambda setting: None, {"zzz": 1}, "links")
    with pytest.raises(InputError, match=r"^links\.setting is unknown"):
        checked(scheme, {"setting": 1}, "links")


def test_missing_options():
    with pytest.raises(InputError) as error:
        checked(required_options, {"path": "a"}, "downlink")
    assert str(error.value) == "downlink.count is missing: it has no default"
    assert checked(required_options, {"path": "a", "count": 2}, "downlink") == {
        "path": "a",
        "count": 2,
    }


def test_options_as_text():
    texts = [str(option) for option in options_of(scheme).values()]
    assert texts[:3] == ["cutoff=50", "gamma=0.4", "rescale=false"]
    assert [str(option) for option in options_of(required_options).values()] == [
        "path=…",
        "count=…",
    ]


def test_nearest():
    assert nearest("mifaa", ["fedavg", "mifa"]) == "one of fedavg, mifa; did you mean 'mifa'?"
    assert nearest("zzz", ["fedavg", "mifa"]) == "one of fedavg, mifa"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_accepts_its_defaults(name):
    constructor = ALGORITHMS[name].__init__
    options = options_of(constructor)
    defaults = {option.name: option.default for option in options.values()}
    assert checked(constructor, defaults, "algorithm") == defaults


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("fedau", {"cutoff": 0}),
        ("f3ast", {"beta": 1.0}),
        ("f3ast", {"beta": 0.0}),
        ("f3ast", {"cap": 0}),
        ("fedawe", {"clip": -1.0}),
        ("mifa", {"rescale": "yes"}),
        ("fedavg", {"cutoff": 3}),
    ],
)
def test_options_of_algorithms_are_bounded(name, wrong):
    with pytest.raises(InputError, match=rf"^algorithm\.{next(iter(wrong))} is "):
        checked(ALGORITHMS[name].__init__, wrong, "algorithm")


@pytest.mark.parametrize(
    "error",
    [InputError("a.b is empty"), InputError("a", 3, "4"), DivergedError(3, 5)],
)
def test_errors_can_be_pickled(error):
    import pickle

    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
