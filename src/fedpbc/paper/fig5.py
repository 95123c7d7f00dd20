"""Figure 5: the classes' rates r, and the clients' probabilities p_i.

r is drawn once for each seed. ⟨r, ν_i⟩ is client i's probability before it is raised to at least δ;
ν_i are the shares of the classes in the client's data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.links import class_rates, from_data
from fedpbc.links.probabilities import ProbabilityOptions, hidden_shares
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.request import (
    check_settings,
    data_folders,
    merge,
    requested_data,
    requested_seeds,
)
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import write_figure
from fedpbc.simulation.build import take_probability_options

__all__ = ["OPTIONS", "ClientProbabilities", "draw_probabilities", "run"]

OPTIONS = ("data", "data_dir", "seeds")
SETTINGS = ("clients", "data.alpha", "links.sigma", "links.delta", "plugins")
BINS = [k / 20 for k in range(21)]
COLOURS = (
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3"),
    *("#fdb462", "#b3de69", "#fccde5", "#d9d9d9", "#bc80bd"),
)
"""The paper's colours of the classes; the classes are numbered as well."""


@dataclass(frozen=True)
class ClientProbabilities:
    """The probabilities of one data set's clients with one seed."""

    data: str
    seed: int
    rates: NDArray[np.float64]  # r
    p: NDArray[np.float64]  # ⟨r, ν_i⟩ of every client
    delta: float  # δ, the lower limit of p_i

    @property
    def title(self) -> str:
        """A readable name."""
        return f"{self.data}, seed {self.seed}"

    @property
    def below_delta(self) -> int:
        """The number of clients with p_i < δ."""
        return int((self.p < self.delta).sum())


def draw_probabilities(config: Config) -> ClientProbabilities:
    """Draw r and p_i as a run with this configuration does, but without δ."""
    task = build_task(config)
    seed = config.general.seed
    options = ProbabilityOptions(**take_probability_options(dict(config.links)))
    shares = task.class_shares
    if getattr(task, "has_natural_clients", False):
        shares = hidden_shares(seed, task.clients)
    if shares is None:
        raise InputError("data", config.data.name, "one with classes, from which p_i is drawn")
    return ClientProbabilities(
        config.data.name,
        seed,
        class_rates(seed, shares.shape[1], options.sigma),
        from_data(seed, shares, options.sigma, delta=0.0),
        options.delta,
    )


def run(request: ExperimentRequest) -> ExperimentResult:
    """Draw r and the histogram of p_i, a column for each data set and seed."""
    check_settings("fig5", request, SETTINGS)
    names = requested_data(request, ["fashion"])
    folders = data_folders(request, names)
    columns = []
    for name in names:
        for seed in requested_seeds(request):
            defaults = {"data": {"name": name} | folders[name], "seed": seed, "links": {}}
            config = Config.from_dict(merge(defaults, request.settings))
            columns.append(draw_probabilities(config))
    return write_figure(
        "fig5",
        request,
        size=(max(4.2, 2.9 * len(columns)), 5.2),
        draw=lambda figure: draw(figure, columns),
        table=numbers_table(columns),
        numbers={
            "settings": {"links": {"delta": columns[0].delta}, **request.settings},
            "drawn": [
                {
                    "data": column.data,
                    "seed": column.seed,
                    "r": column.rates.tolist(),
                    "p_before_delta": column.p.tolist(),
                    "delta": column.delta,
                    "below_delta": column.below_delta,
                }
                for column in columns
            ],
        },
        quick="nothing is left out, this figure takes seconds",
    )


def numbers_table(columns: Sequence[ClientProbabilities]) -> ResultTable:
    """r by class, and a summary of the p_i."""
    rows = []
    for c in range(max(len(column.rates) for column in columns)):
        rates = (f"{col.rates[c]:.2e}" if c < len(col.rates) else "" for col in columns)
        rows.append([str(c), *rates])
    rows += [
        ["clients", *(str(len(column.p)) for column in columns)],
        ["p < δ", *(str(column.below_delta) for column in columns)],
        ["p > 0.5", *(str(int((column.p > 0.5).sum())) for column in columns)],
        ["mean p", *(f"{column.p.mean():.3f}" for column in columns)],
        ["with δ", *(f"{np.maximum(col.p, col.delta).mean():.3f}" for col in columns)],
    ]
    notes = [
        "r by class, and p = ⟨r, ν_i⟩ of the clients before it is raised to at least δ = "
        f"{columns[0].delta:g}; the last line is the mean after that."
    ]
    head = ["class", *(column.title for column in columns)]
    return ResultTable("The numbers", head, rows, notes, sections=0)


def draw(figure: Figure, columns: Sequence[ClientProbabilities]) -> None:
    """Draw in each column: r to scale, r on a log scale, and the histogram of p_i."""
    panels = figure.subplots(
        3, len(columns), squeeze=False, sharey="row", height_ratios=(0.5, 2.2, 2.2)
    )
    least = min(float(column.rates[column.rates > 0].min()) for column in columns)
    several = len({column.data for column in columns}) > 1
    for k, column in enumerate(columns):
        strip, bars, histogram = panels[:, k]
        draw_shares(strip, column)
        draw_rates(bars, column, least)
        draw_histogram(histogram, column)
        strip.set_title(column.title if several else f"seed {column.seed}")
    panels[1, 0].set_ylabel("$r$, log scale")
    panels[2, 0].set_ylabel("clients")


def draw_shares(axes: Axes, column: ClientProbabilities) -> None:
    """Draw r as one bar, divided into classes, to show which dominate."""
    start = 0.0
    for c, rate in enumerate(column.rates):
        axes.barh(
            0, rate, left=start, color=COLOURS[c % len(COLOURS)], edgecolor="black", linewidth=0.6
        )
        if rate > 0.06:
            axes.text(start + rate / 2, 0, str(c), ha="center", va="center", weight="bold")
        start += rate
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.spines[["left"]].set_visible(False)
    axes.set_xlabel("share of each class in $r$", size=8)


def draw_rates(axes: Axes, column: ClientProbabilities, least: float) -> None:
    """Draw r by class, down to the least of all panels; they differ by many powers of ten."""
    classes = np.arange(len(column.rates))
    bars = axes.bar(
        classes,
        column.rates,
        color=[COLOURS[c % len(COLOURS)] for c in classes],
        edgecolor="black",
        linewidth=0.6,
    )
    if len(classes) <= 20:
        exact = [f"{rate:.1e}" for rate in column.rates]
        axes.bar_label(bars, exact, rotation=90, padding=2, size=6.5)
    axes.set_yscale("log")
    decades = -math.log10(least) + 1
    # Room above 1 for the numbers.
    axes.set_ylim(10**-decades, 10 ** (0.35 * decades))
    axes.set_yticks([10.0**-k for k in range(0, int(decades) + 1, math.ceil(decades / 5))])
    axes.minorticks_off()
    axes.set_xticks(classes)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("class")
    axes.grid(True, axis="y")
    axes.set_axisbelow(True)


def draw_histogram(axes: Axes, column: ClientProbabilities) -> None:
    """Draw the histogram of p_i."""
    axes.hist(column.p, BINS, color="#56B4E9", edgecolor="black", linewidth=0.6)
    axes.axvline(column.delta, color="black", linestyle="--", linewidth=1.1)
    axes.annotate(
        f"{column.below_delta} of {len(column.p)} clients\nbelow δ = {column.delta:g}",
        (column.delta, 0.9),
        (8, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        size=8.5,
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("$p_i$ before it is raised to δ")
