"""Figure 6: who gets through when: every link scheme, four probabilities.

A panel a scheme, a row a probability, a block for every round in which the uplink is up. Where p^t
rises and falls, it is drawn behind the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.experiments.plugins import load_plugin
from fedpbc.links import Setting, Timetable, find_scheme
from fedpbc.options import unknown_option
from fedpbc.paper.experiment import ExperimentRequest, ExperimentResult
from fedpbc.paper.request import check_settings, rounds_of, seeds_of
from fedpbc.paper.style import write_experiment
from fedpbc.report.page import PageTable

__all__ = ["OPTIONS", "PROBABILITIES", "Activity", "run"]

OPTIONS = ("links", "seeds", "rounds")
PROBABILITIES = (0.01, 0.1, 0.5, 0.9)
LINKS = (
    "bernoulli",
    "bernoulli_varying",
    "markov",
    "markov_varying",
    "cyclic",
    "cyclic_reset",
)
ROUNDS = 80
CYCLES = 4
"""How many cycles are shown of a scheme that has them."""
COLOURS = ("#CC79A7", "#D55E00", "#0072B2", "#000000")


@dataclass(frozen=True)
class Activity:
    """A scheme's links, [rounds, seeds, probabilities], and the probabilities in each round.

    ``cycle`` is 0 for a scheme without cycles.
    """

    scheme: str
    up: NDArray[np.bool_]
    p: NDArray[np.float64]
    cycle: int = 0

    @property
    def varies(self) -> bool:
        """Whether probabilities change from round to round."""
        return bool((self.p != self.p[0]).any())


def activity(
    scheme: str, seeds: Sequence[int], rounds: int | None, given: dict[str, Any]
) -> Activity:
    """A scheme's links for one client of each probability and seed.

    Example:
        >>> found = activity("cyclic", [0], None, {"cycle": 20})
        >>> found.up.shape, found.up[:20, 0, 2].sum()
        ((80, 1, 4), np.int64(10))
    """
    kind = find_scheme(scheme)
    options = {k: v for k, v in given.items() if k in kind.options}
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
    return Activity(scheme, np.stack(up, axis=1), p[0], cycle)


def run(wanted: ExperimentRequest) -> ExperimentResult:
    """Draw every scheme's links.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> made = run(ExperimentRequest(out=Path(tempfile.mkdtemp()), links=["always"]))
        >>> made.numbers["schemes"][0]["shares"]
        [1.0, 1.0, 1.0, 1.0]
    """
    check_settings("fig6", wanted, ("links", "plugins"))
    for plugin in wanted.settings.get("plugins", ()):
        load_plugin(str(plugin))
    seeds = seeds_of(wanted, (0,))
    rounds = None if wanted.rounds is None else rounds_of(wanted, ROUNDS)
    names = list(wanted.links or LINKS)
    if len(set(names)) < len(names):
        raise InputError("links", names, "different names")
    given = dict(wanted.settings.get("links", {}))
    known = {option for name in names for option in find_scheme(name).options}
    for option in given:
        if option not in known:
            raise unknown_option(option, sorted(known), "links")
    found = [activity(name, seeds, rounds, given) for name in names]
    return write_experiment(
        "fig6",
        wanted,
        size=(9.0, 0.45 + 1.75 * -(-len(found) // 2)),
        draw=lambda figure: draw(figure, found),
        table=table(found, seeds),
        numbers={
            "settings": {"p": list(PROBABILITIES), "seeds": seeds, "links": given},
            "schemes": [as_dict(one) for one in found],
        },
        quick="nothing is left out, this figure takes seconds",
    )


def as_dict(one: Activity) -> dict[str, Any]:
    """For machines; a string of 0 and 1 for each seed and probability."""
    rounds, seeds, clients = one.up.shape
    return {
        "scheme": one.scheme,
        "rounds": rounds,
        "shares": one.up.mean(axis=(0, 1)).tolist(),
        "up": [
            ["".join(map(str, one.up[:, k, i].astype(int))) for i in range(clients)]
            for k in range(seeds)
        ],
    }


def longest(up: NDArray[np.bool_], state: bool) -> int:
    """The longest stretch of rounds in one state.

    Example:
        >>> longest(np.array([True, False, False, True]), False)
        2
    """
    stretches = [len(list(group)) for value, group in groupby(up.tolist()) if value == state]
    return max(stretches, default=0)


def table(found: Sequence[Activity], seeds: Sequence[int]) -> PageTable:
    """How often each link is up, and for how long at a time."""
    rows = [["scheme", "rounds", *(f"p = {p:g}" for p in PROBABILITIES)]]
    for one in found:
        cells = []
        for i in range(len(PROBABILITIES)):
            links = one.up[:, :, i].T
            up, down = (max(longest(link, state) for link in links) for state in (True, False))
            cells.append(f"{100 * links.mean():.0f} % ({up}, {down})")
        rows.append([one.scheme, str(len(one.up)), *cells])
    shown = ", ".join(map(str, seeds))
    note = (
        "share of rounds in which the uplink is up, and its longest time up and down; "
        f"seed{'s' * (len(seeds) > 1)} {shown}."
    )
    return PageTable("The numbers", rows[0], rows[1:], [note])


def draw(figure: Figure, found: Sequence[Activity]) -> None:
    """Two panels a row: on the left what stays, on the right what varies."""
    height = -(-len(found) // 2)
    panels = figure.subplots(height, 2 if len(found) > 1 else 1, squeeze=False)
    for axes, one in zip(panels.flat, found, strict=False):
        draw_panel(axes, one)
    for axes in panels.flat[len(found) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("round")


def draw_panel(axes: Axes, one: Activity) -> None:
    """A row of blocks for each probability, one under another for each seed."""
    rounds, seeds, clients = one.up.shape
    thick = 0.72 / seeds
    for i in range(clients):
        colour = COLOURS[i % len(COLOURS)]
        floor = i - 0.36
        axes.plot([0, rounds], [floor, floor], color="#bbbbbb", linewidth=0.6, zorder=1)
        for k in range(seeds):
            starts = np.flatnonzero(one.up[:, k, i])
            axes.broken_barh(
                [(float(t), 1.0) for t in starts],
                (floor + k * thick, thick * (0.9 if seeds > 1 else 1)),
                facecolor=colour,
                # A thin white edge, so that neighbouring rounds can be counted while there are few.
                edgecolor="white" if rounds <= 120 else colour,
                linewidth=0.4 if rounds <= 120 else 0.8,
                zorder=2,
            )
        if one.varies:
            swing = floor + 0.72 * one.p[:, i] / max(one.p[:, i].max(), 1e-12)
            axes.fill_between(
                np.arange(rounds) + 0.5, floor, swing, color="#999999", alpha=0.3, linewidth=0
            )
        axes.text(
            1.005,
            (i + 0.5) / clients,
            f"{100 * one.up[:, :, i].mean():.0f} %",
            transform=axes.transAxes,
            va="center",
            size=7.5,
            color="#444444",
        )
    for edge in range(one.cycle, rounds, one.cycle) if one.cycle else ():
        axes.axvline(edge, color="#444444", linestyle=":", linewidth=0.9, zorder=3)
    axes.set_xlim(0, rounds)
    axes.set_ylim(-0.5, clients - 0.5)
    axes.set_yticks(range(clients), [f"p = {p:g}" for p in PROBABILITIES])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    notes = [", $p^t$ in grey"] * one.varies + [f", cycles of {one.cycle}"] * bool(one.cycle)
    axes.set_title(f"{one.scheme}{''.join(notes)}", loc="left")
