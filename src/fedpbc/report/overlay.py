"""Runs that are shown together: those of one comparison, or that differ in one option."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from fedpbc.report.load import LoadedRun
from fedpbc.report.run_names import is_compared, root_of
from fedpbc.report.run_options import variant

__all__ = ["Cell", "common_options", "joined_cells"]

NOT_OVERLAID = {"task.name", "data.name", "model.name", "links.name", "downlink.name"}
NOT_OVERLAID |= {"task.targets", "links.file", "downlink.file", "rounds"}
NOT_OVERLAID |= {"evaluate_every", "evaluate_every_at_end"}
"""Another data set, scheme or length is another experiment, unless one comparison has both."""
MAX_CURVES = 24
"""Of runs that are overlaid; more would be hard to tell apart."""
Cell = tuple[dict[str, str], list[LoadedRun]]
"""Runs with equal shared options."""


def joined_cells(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Join the cells of one comparison, and those that differ in one option.

    The order is that of the first cells.
    """
    joined: list[list[Cell]] = [[cell] for cell in cells]

    def join(groups: Sequence[list[Cell]]) -> bool:
        members = [(id(cell), run) for group in groups for cell in group for run in cell[1]]
        curves = {(cell, run.algorithm, variant(run)) for cell, run in members}
        if len(groups) < 2 or len(curves) > MAX_CURVES:
            return False
        first, *others = groups
        for other in others:
            first += other
            joined.remove(other)
        return True

    compared = [run for _, runs in cells for run in runs if is_compared(run)]
    for root in dict.fromkeys(map(root_of, compared)):
        join([g for g in joined if any(root_of(r) == root for _, runs in g for r in runs)])
    while True:
        singles = [group for group in joined if len(group) == 1]
        # The option with the most values first.
        if not any(map(join, sorted(_by_one_option(singles), key=len, reverse=True))):
            return joined


def _by_one_option(singles: Sequence[list[Cell]]) -> list[list[list[Cell]]]:
    """Return sets of cells that are equal but for one option, with an algorithm in common."""
    sets: list[list[list[Cell]]] = []
    keys = sorted({key for [(options, _)] in singles for key in options} - NOT_OVERLAID)
    for key in keys:
        alike: dict[Hashable, list[list[Cell]]] = {}
        for single in singles:
            [(options, _)] = single
            if key in options:
                same = tuple((k, v) for k, v in options.items() if k != key)
                alike.setdefault(same, []).append(single)
        sets += [members for members in alike.values() if len(members) > 1 and _share(members)]
    return sets


def _share(cells: Sequence[Sequence[Cell]]) -> bool:
    """Whether some algorithm is in all cells: then its runs differ in that option alone."""
    return bool(set.intersection(*({run.algorithm for run in runs} for [(_, runs)] in cells)))


def common_options(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the options that all have in common."""
    first, *others = options
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
