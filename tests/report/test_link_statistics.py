"""The statistics of links as rows and as a picture."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text

from fedpbc.links import from_table
from fedpbc.report.link_statistics import link_figure, link_rows
from fedpbc.theory.link_statistics import link_statistics

RARELY = np.arange(60)[:, None] % np.array([10, 20, 30, 61]) == 9


@pytest.mark.parametrize("table", [np.ones((60, 4), dtype=bool), RARELY], ids=["always", "rarely"])
def test_labels_cover_neither_curves_nor_bars_nor_titles(table):
    figure = link_figure(link_statistics(from_table(table), round_seconds=600), "Links")
    figure.canvas.draw()
    for axes in figure.axes[:2]:
        label = axes.get_legend().get_window_extent()
        assert label.y0 >= axes.bbox.y1 - 1
        [title] = [t for t in axes.findobj(Text) if t.get_text() == axes.get_title("left")]
        assert not label.overlaps(title.get_window_extent())
        assert not axes.texts


def test_labels_name_the_mean_and_the_median():
    figure = link_figure(link_statistics(from_table(RARELY)), "Links")
    labels = [[text.get_text() for text in axes.get_legend().texts] for axes in figure.axes[:2]]
    # Shares of 6, 3, 2 and 1 of 60 rounds.
    assert labels == [["mean: 5 %"], ["median: 4.17 %"]]


def test_rows_of_links_that_never_change():
    rows = link_rows(link_statistics(from_table(np.ones((60, 1)))))
    assert rows[0] == ("rounds and devices", "60 rounds, 1 device", "")
    assert ("change over time", "no link changed", "") in rows
    assert ("contacts", "1", "none of them ended in these rounds") in rows
    assert not [name for name, *_ in rows if "single devices" in name]
