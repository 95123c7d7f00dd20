"""Values from outside are bounded before anything else looks at them."""

from __future__ import annotations

import pytest

from fedpbc.errors import InputError
from fedpbc.limits import check_values, parse_json, parse_toml


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": {"b": 2**63}}, "a.b is 9223372036854775808, but should be a number from"),
        ({"a": 10**5000}, "a is 'of 16610 bits', but should be a number from"),
        ({"a": [1.0, float("nan")]}, "a is nan, but should be a finite number"),
        ({"a": "x" * 5000}, "a has 5,000 characters, but at most 4,096 fit"),
        ({"a\0": 1}, "a name is 'a\\x00', but should be a text without NUL characters"),
    ],
)
def test_what_is_out_of_bounds(value, line):
    with pytest.raises(InputError) as error:
        check_values(value)
    assert str(error.value).startswith(line)


def test_what_is_within():
    check_values({"a": [1, 2.5, "x", True, None, {"b": -(2**63)}]})


def test_deep_values():
    deep: list = []
    for _ in range(25):
        deep = [deep]
    with pytest.raises(InputError, match="nests deeper than 20 levels"):
        check_values({"a": deep})


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "NaN", "-Infinity", "1e999", "{", ""])
def test_bad_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 3000, "a = " + "9" * 5000, "a = nan", "a", "a = 1e999"]
)
def test_bad_toml_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_toml(text)
