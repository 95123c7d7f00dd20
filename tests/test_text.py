"""Text from anyone becomes one bounded line without hidden characters."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\t tabbed", "two lines tabbed"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("not UTF-8: \udcff", "not UTF-8: \\xff"),
        ("η₀ – ü ✓", "η₀ – ü ✓"),
        ("bell\x07 back\x08 delete\x7f", "bell\\x07 back\\x08 delete\\x7f"),
        ("x[/b]", "x[/b]"),
    ],
)
def test_hidden_characters_are_shown(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)), st.integers(10, 100))
def test_any_text_is_one_bounded_line_that_can_be_encoded(text, limit):
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_a_huge_text_is_cut():
    assert printable("x" * 10**7) == "x" * 498 + " …"
