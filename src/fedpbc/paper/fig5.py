"""Figure 5: the classes' rates r, and the p_i that they give the clients.

r is drawn once a seed; ⟨r, ν_i⟩ is client i's probability before it is lifted to δ, with ν_i the
shares of the classes in the data that the client really holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from fedpbc.links import class_rates, from_data
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.request import check_settings, merged, seeds_of
from fedpbc.paper.style import write_experiment
from fedpbc.report.page import PageTable

__all__ = ["OPTIONS", "Drawn", "draw_probabilities", "run"]

OPTIONS = ("data", "data_dir", "seeds")
SETTINGS = ("clients", "data.alpha", "links.sigma", "links.delta", "plugins")
SEEDS = (0, 1, 2)
BINS = [k / 20 for k in range(21)]
COLOURS = (
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3"),
    *("#fdb462", "#b3de69", "#fccde5", "#d9d9d9", "#bc80bd"),
)
"""The paper's for its classes; their numbers say which they are where there are no colours."""


@dataclass(frozen=True)
class Drawn:
    """What one seed makes of one data set.

    Attributes:
        data: the data set's name.
        seed: of r and of the partition.
        rates: r.
        p: ⟨r, ν_i⟩ for every client.
        delta: δ, to which p_i is lifted.
    """

    data: str
    seed: int
    rates: NDArray[np.float64]
    p: NDArray[np.float64]
    delta: float

    @property
    def lifted(self) -> int:
        """How many clients are below δ."""
        return int((self.p < self.delta).sum())


def draw_probabilities(config: Config) -> Drawn:
    """r and p_i as a run with that configuration has them, but for δ.

    Example:
        >>> drawn = draw_probabilities(Config.from_dict({"data": "digits", "clients": 10}))
        >>> drawn.rates.shape, drawn.p.shape
        ((10,), (10,))
    """
    shares = build_task(config).class_shares
    assert shares is not None  # Every data set has classes.
    seed, sigma = config.general.seed, config.links["sigma"]
    return Drawn(
        config.data.name,
        seed,
        class_rates(seed, shares.shape[1], sigma),
        from_data(seed, shares, sigma, delta=0.0),
        config.links["delta"],
    )


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Draw r and the histogram of p_i, a column for each data set and seed.

    Example:
        >>> import tempfile
        >>> wanted = ExperimentRequest(out=Path(tempfile.mkdtemp()), data=["digits"], seeds=[3])
        >>> run(wanted).numbers["drawn"][0]["seed"]
        3
    """
    check_settings("fig5", wanted, SETTINGS)
    seeds = seeds_of(wanted, SEEDS)
    drawn = []
    for name in wanted.data or ["fashion"]:
        for seed in seeds:
            data = {"name": name}
            if wanted.data_dir is not None:
                data["dir"] = str(folder_of(wanted.data_dir, name))
            given = merged({"data": data, "seed": seed, "links": {}}, wanted.settings)
            drawn.append(draw_probabilities(Config.from_dict(given)))
    return write_experiment(
        "fig5",
        wanted,
        size=(max(4.2, 2.9 * len(drawn)), 5.2),
        draw=lambda figure: draw(figure, drawn),
        table=table(drawn),
        numbers={
            "settings": {"links": {"delta": drawn[0].delta}, **wanted.settings},
            "drawn": [as_dict(one) for one in drawn],
        },
        quick="nothing is left out, this figure takes seconds",
    )


def folder_of(parent: Path, name: str) -> Path:
    """A data set's folder: the one in the parent that has its name, or the parent itself."""
    own = parent.expanduser() / name
    return own if own.is_dir() else parent


def as_dict(one: Drawn) -> dict[str, Any]:
    """For machines."""
    return {
        "data": one.data,
        "seed": one.seed,
        "r": one.rates.tolist(),
        "p_before_delta": one.p.tolist(),
        "delta": one.delta,
        "below_delta": one.lifted,
    }


def table(drawn: Sequence[Drawn]) -> PageTable:
    """The exact numbers of r, and the histogram in figures."""
    titles = [f"{one.data}, seed {one.seed}" for one in drawn]
    rows = [["class", *titles]]
    for c in range(max(len(one.rates) for one in drawn)):
        known = [f"{one.rates[c]:.2e}" if c < len(one.rates) else "" for one in drawn]
        rows.append([str(c), *known])
    rows.append(["clients", *(str(len(one.p)) for one in drawn)])
    rows.append(["p < δ", *(str(one.lifted) for one in drawn)])
    rows.append(["p > 0.5", *(str(int((one.p > 0.5).sum())) for one in drawn)])
    rows.append(["mean p", *(f"{one.p.mean():.3f}" for one in drawn)])
    lifted = [np.maximum(one.p, one.delta).mean() for one in drawn]
    rows.append(["with δ", *(f"{mean:.3f}" for mean in lifted)])
    notes = [
        "r by class, and p = ⟨r, ν_i⟩ over the clients before it is lifted to δ = "
        f"{drawn[0].delta:g}; the last line is the mean after that."
    ]
    return PageTable("The numbers", rows[0], rows[1:], notes)


def draw(figure: Figure, drawn: Sequence[Drawn]) -> None:
    """In a column each: r to scale, r on a log scale, and the histogram of p_i."""
    panels = figure.subplots(
        3, len(drawn), squeeze=False, sharey="row", height_ratios=(0.5, 2.2, 2.2)
    )
    least = min(float(one.rates[one.rates > 0].min()) for one in drawn)
    several = len({one.data for one in drawn}) > 1
    for k, one in enumerate(drawn):
        strip, bars, histogram = panels[:, k]
        draw_shares(strip, one)
        draw_rates(bars, one, least)
        draw_histogram(histogram, one)
        strip.set_title(f"{one.data}, seed {one.seed}" if several else f"seed {one.seed}")
    panels[1, 0].set_ylabel("$r$, log scale")
    panels[2, 0].set_ylabel("clients")


def draw_shares(axes: Axes, one: Drawn) -> None:
    """r as one bar, cut into classes: which of them dominate."""
    start = 0.0
    for c, rate in enumerate(one.rates):
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


def draw_rates(axes: Axes, one: Drawn, least: float) -> None:
    """r by class, down to the least in any panel; they differ by many powers of ten."""
    classes = np.arange(len(one.rates))
    bars = axes.bar(
        classes,
        one.rates,
        color=[COLOURS[c % len(COLOURS)] for c in classes],
        edgecolor="black",
        linewidth=0.6,
    )
    if len(classes) <= 20:
        exact = [f"{rate:.1e}" for rate in one.rates]
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


def draw_histogram(axes: Axes, one: Drawn) -> None:
    """How many clients have which p_i."""
    axes.hist(one.p, BINS, color="#56B4E9", edgecolor="black", linewidth=0.6)
    axes.axvline(one.delta, color="black", linestyle="--", linewidth=1.1)
    axes.annotate(
        f"{one.lifted} of {len(one.p)} clients\nbelow δ = {one.delta:g}",
        (one.delta, 0.9),
        (8, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        size=8.5,
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("$p_i$ before it is lifted to δ")
