from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import pytest

from fedpbc.experiments.intervals import Interval
from fedpbc.report.advice import _expected
from tests.synthetic_advice import write_synthetic_advice


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


def test_the_page_has_the_answer_its_chart_and_where_it_comes_from(tmp_path):
    page = write_synthetic_advice(tmp_path / "advice").read_text(encoding="utf-8")
    assert "Run fedpbc and deploy its view &#39;reported&#39;, with η_0 0.1." in page
    assert page.count('data-chart="curve"') == 1
    assert f"Made by fedpbc {version('fedpbc')}" in page
    assert page.count('<span class="tag best">recommended</span>') == 1
    assert "scaffold (devices keep nothing)." in page
