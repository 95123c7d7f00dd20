from __future__ import annotations

import pytest

from fedpbc.report.byte_units import common_unit, with_unit


@pytest.mark.parametrize(
    ("counts", "name", "shown"),
    [
        ([93_600_000, 187_200_000], "MB", ["94", "187"]),
        ([93_600_000, 1_872_000_000], "GB", ["0.094", "1.872"]),
        ([936_000, 1_872_000], "MB", ["0.94", "1.87"]),
        ([1_000], "kB", ["1.0"]),
        ([999], "B", ["999"]),
        ([8, 160], "B", ["8", "160"]),
        ([0, 160_000], "kB", ["0", "160"]),
        ([12_345_678_000_000, None], "TB", ["12", "–"]),
        ([None, None], "MB", ["–", "–"]),
        ([0], "MB", ["0"]),
        ([1, 5_000_000_000], "GB", ["0.000", "5.000"]),
        ([10**30], "EB", ["1,000,000,000,000"]),
        ([], "MB", []),
    ],
)
def test_one_unit_for_a_column(counts, name, shown):
    unit = common_unit(counts)
    assert unit.name == name
    assert [unit.shown(count) for count in counts] == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (160, "160 B"), (203_300, "203 kB"), (2_000_000, "2 MB"), (999_999, "1 MB")],
)
def test_a_number_with_its_own_unit(count, shown):
    assert with_unit(count) == shown
