from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedpbc.experiments.intervals import Interval
from fedpbc.report.advice import _expected


@pytest.mark.parametrize(
    ("has_classes", "mean", "interval", "text"),
    [
        (
            True,
            0.82,
            Interval(0.81, 0.83),
            "Expected test accuracy: 82.0 % (mean over 2 seeds, 95 % interval 81.0 to 83.0).",
        ),
        (
            False,
            -6.0,
            Interval(-7.5, -4.5),
            "Expected test loss: 6 (mean over 2 seeds, 95 % interval 4.5 to 7.5).",
        ),
        (False, -6.0, None, "Expected test loss: 6 (one seed)."),
    ],
)
def test_what_to_expect(has_classes, mean, interval, text):
    found = SimpleNamespace(
        has_classes=has_classes,
        mean=mean,
        interval=interval,
        verdict=SimpleNamespace(seeds=(1, 2)),
        over_baseline=None,
        recovered=None,
    )
    assert _expected(found) == text
