"""Figure 6: when each uplink is up: every link scheme, four probabilities.

A panel for each scheme, a row for each probability, a block for every round in which the uplink is
up. Where p^t varies, it is drawn behind the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.links import Setting, Timetable, find_scheme
from fedpbc.options import nearest
from fedpbc.paper.catalog import ExperimentRequest, ExperimentResult
from fedpbc.paper.request import check_settings, requested_links, requested_rounds, requested_seeds
from fedpbc.paper.result_table import ResultTable
from fedpbc.paper.results import write_figure
from fedpbc.paper.table1 import LINKS

__all__ = ["OPTIONS", "PROBABILITIES", "LinkActivity", "run"]

OPTIONS = ("links", "seeds", "rounds")
PROBABILITIES = (0.01, 0.1, 0.5, 0.9)
ROUNDS = 80
CYCLES = 4
"""The number of cycles drawn of a cyclic scheme."""
COLOURS = ("#CC79A7", "#D55E00", "#0072B2", "#000000")


@dataclass(frozen=True)
class LinkActivity:
    """The links of one scheme."""

    scheme: str
    up: NDArray[np.bool_]  # [rounds, seeds, probabilities]
    p: NDArray[np.float64]  # The probabilities in each round.
    cycle: int = 0  # In rounds; 0 for a scheme without cycles.

    @property
    def varies(self) -> bool:
        """Whether probabilities change from round to round."""
        return bool((self.p != self.p[0]).any())

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; a string of 0 and 1 for each seed and probability."""
        return {
            "scheme": self.scheme,
            "rounds": len(self.up),
            "shares": self.up.mean(axis=(0, 1)).tolist(),
            "up": [
                ["".join(map(str, link.astype(int))) for link in of_seed.T]
                for of_seed in self.up.swapaxes(0, 1)
            ],
        }


def draw_links(
    scheme: str, seeds: Sequence[int], rounds: int | None, settings: Mapping[str, Any]
) -> LinkActivity:
    """Draw a scheme's links for one client of each probability and seed.

    ``settings`` may have options of other schemes; ``rounds`` of None: the figure's default.
    """
    kind = find_scheme(scheme)
    options = {key: value for key, value in settings.items() if key in kind.options}
    cycle = 0
    if "cycle" in kind.options:
        cycle = int(options.get("cycle", kind.options["cycle"].default))
    length = rounds or (CYCLES * cycle if cycle else ROUNDS)
    up, p = [], []
    for seed in seeds:
        setting = Setting(seed, len(PROBABILITIES), length, np.array(PROBABILITIES))
        timetable = Timetable.draw(kind, setting, options)
        up.append(np.array([timetable.up(t) for t in range(length)]))
        p.append(np.array(list(timetable.probabilities())))
    return LinkActivity(scheme, np.stack(up, axis=1), p[0], cycle)


def run(request: ExperimentRequest) -> ExperimentResult:
    """Draw every scheme's links."""
    check_settings("fig6", request, ("links", "plugins"))
    seeds = requested_seeds(request, (0,))
    rounds = None if request.rounds is None else requested_rounds(request, ROUNDS)
    names = requested_links(request, LINKS)
    settings = dict(request.settings.get("links", {}))
    options = sorted({option for name in names for option in find_scheme(name).options})
    for option in settings:
        if option not in options:
            raise InputError(f"links.{option} is unknown: use {nearest(option, options)}")
    schemes = [draw_links(name, seeds, rounds, settings) for name in names]
    return write_figure(
        "fig6",
        request,
        size=(9.0, 0.45 + 1.75 * -(-len(schemes) // 2)),
        draw=lambda figure: draw(figure, schemes),
        table=numbers_table(schemes, seeds),
        numbers={
            "settings": {"p": list(PROBABILITIES), "seeds": seeds, "links": settings},
            "schemes": [activity.as_dict() for activity in schemes],
        },
        quick="nothing is left out, this figure takes seconds",
    )


def longest_stretch(up: NDArray[np.bool_], state: bool) -> int:
    """The length of the longest stretch of rounds in one state."""
    stretches = [len(list(group)) for value, group in groupby(up.tolist()) if value == state]
    return max(stretches, default=0)


def numbers_table(schemes: Sequence[LinkActivity], seeds: Sequence[int]) -> ResultTable:
    """How often each link is up, and for how long at a time."""
    rows = []
    for activity in schemes:
        cells = []
        for i in range(len(PROBABILITIES)):
            links = activity.up[:, :, i].T
            up, down = (
                max(longest_stretch(link, state) for link in links) for state in (True, False)
            )
            cells.append(f"{100 * links.mean():.0f} % ({up}, {down})")
        rows.append([activity.scheme, str(len(activity.up)), *cells])
    note = (
        "share of rounds in which the uplink is up, and its longest time up and down; "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."
    )
    head = ["scheme", "rounds", *(f"p = {p:g}" for p in PROBABILITIES)]
    return ResultTable("The numbers", head, rows, [note], sections=0)


def draw(figure: Figure, schemes: Sequence[LinkActivity]) -> None:
    """Draw two panels in a row: constant probabilities on the left, varying ones on the right."""
    panels = figure.subplots(-(-len(schemes) // 2), 2 if len(schemes) > 1 else 1, squeeze=False)
    for axes, activity in zip(panels.flat, schemes, strict=False):
        draw_panel(axes, activity)
    for axes in panels.flat[len(schemes) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("round")


def draw_panel(axes: Axes, activity: LinkActivity) -> None:
    """Draw a row of blocks for each probability, with a line for each seed."""
    rounds, seeds, clients = activity.up.shape
    height = 0.72 / seeds
    for i in range(clients):
        colour = COLOURS[i % len(COLOURS)]
        floor = i - 0.36
        axes.plot([0, rounds], [floor, floor], color="#bbbbbb", linewidth=0.6, zorder=1)
        for k in range(seeds):
            starts = np.flatnonzero(activity.up[:, k, i])
            axes.broken_barh(
                [(float(t), 1.0) for t in starts],
                (floor + k * height, height * (0.9 if seeds > 1 else 1)),
                facecolor=colour,
                # A thin white edge separates neighbouring rounds while there are few.
                edgecolor="white" if rounds <= 120 else colour,
                linewidth=0.4 if rounds <= 120 else 0.8,
                zorder=2,
            )
        if activity.varies:
            curve = floor + 0.72 * activity.p[:, i] / max(activity.p[:, i].max(), 1e-12)
            axes.fill_between(
                np.arange(rounds) + 0.5, floor, curve, color="#999999", alpha=0.3, linewidth=0
            )
        axes.text(
            1.005,
            (i + 0.5) / clients,
            f"{100 * activity.up[:, :, i].mean():.0f} %",
            transform=axes.transAxes,
            va="center",
            size=7.5,
            color="#444444",
        )
    for edge in range(activity.cycle, rounds, activity.cycle) if activity.cycle else ():
        axes.axvline(edge, color="#444444", linestyle=":", linewidth=0.9, zorder=3)
    axes.set_xlim(0, rounds)
    axes.set_ylim(-0.5, clients - 0.5)
    axes.set_yticks(range(clients), [f"p = {p:g}" for p in PROBABILITIES])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    notes = [", $p^t$ in grey"] * activity.varies + [f", cycles of {activity.cycle}"] * bool(
        activity.cycle
    )
    axes.set_title(f"{activity.scheme}{''.join(notes)}", loc="left")
