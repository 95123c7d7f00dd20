"""The compiled functions are used where they were built, and the processor can run them."""

from types import SimpleNamespace

import pytest

from fedpbc import compiled


@pytest.mark.parametrize(
    ("library", "is_wide"),
    [
        (None, False),
        # As an earlier version of the package built it.
        (SimpleNamespace(), False),
        (SimpleNamespace(fedpbc_has_wide_registers=lambda: 0), False),
        (SimpleNamespace(fedpbc_has_wide_registers=lambda: 1), True),
    ],
    ids=["not built", "of an earlier version", "another processor", "wide"],
)
def test_functions_for_wide_registers(library, is_wide, monkeypatch):
    monkeypatch.setattr(compiled, "compiled_library", lambda: library)
    assert (compiled.wide_library() is library and library is not None) == is_wide
