"""What each algorithm would cost on some links, without training the user's model.

Local steps, uploads and what is kept do not depend on the task, so they are counted on quadratics
of few dimensions over the same links: to the step for as many rounds as are run, and
extrapolated beyond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpbc.algorithms import find_algorithm
from fedpbc.engines import choose_engine
from fedpbc.links import Timetable, from_table
from fedpbc.simulation.build import make_algorithm
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.loop import Simulation
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.tasks import LocalTraining, Quadratic

__all__ = ["CostPreview", "preview_costs"]

ROUNDS = 40
"""Rounds that are counted; local steps beyond are extrapolated by the contacts."""
DIMENSION = 32
"""More than the numbers that a client keeps besides vectors of the model's size."""


@dataclass(frozen=True)
class CostPreview:
    """The costs of an algorithm.

    Attributes:
        models_by_view: on the server, for each view that it could deploy.

    Example:
        >>> cost = CostPreview(100, 0, {"server": 1, "averaged": 2})
        >>> cost.affordable_views(1), cost.affordable_views(2)
        (['server'], ['server', 'averaged'])
    """

    local_steps: int
    models_on_client: int
    models_by_view: Mapping[str, int]

    @property
    def models_on_server(self) -> int | None:
        """Of the view that needs fewest."""
        return min(self.models_by_view.values(), default=None)

    def affordable_views(self, most: int) -> list[str]:
        """The views for which the server keeps at most so many models."""
        return [view for view, models in self.models_by_view.items() if models <= most]


def preview_costs(
    algorithms: Iterable[str],
    links: Timetable,
    training: LocalTraining,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> Mapping[str, CostPreview]:
    """Count the costs of each algorithm, except those that must know the links' probabilities.

    ``tables`` has the name and the options of those that have a label of their own.
    """
    rounds = min(links.rounds, ROUNDS)
    rows = np.stack([links.up(t) for t in range(rounds)])
    contacts = float(links.shares().sum()) * links.rounds
    table = from_table(rows)
    previews = {}
    for label in algorithms:
        chosen = (tables or {}).get(label, {"name": label})
        kind = find_algorithm(chosen["name"])
        if kind.needs_probabilities:
            continue
        # Nearly no step: only counts matter, and nothing can diverge.
        task = Quadratic(
            np.zeros((links.clients, DIMENSION)),
            training=LocalTraining(local_steps=1, learning_rate=1e-6),
        )
        algorithm = make_algorithm(chosen, task, 1.0)
        engine, _ = choose_engine("auto", task)
        simulation = Simulation(
            task, algorithm, engine, table, evaluate_every=rounds, views=DEPLOYABLE
        )
        with closing(simulation):
            for _ in simulation.steps():
                pass
            costs = costs_of(simulation.server)
        beyond = (
            links.rounds / rounds if kind.everyone_trains else contacts / max(1, int(rows.sum()))
        )
        previews[label] = CostPreview(
            round(costs["local_steps"] * training.local_steps * beyond),
            costs["models_on_client"],
            {v: n for v, n in costs["models_on_server"].items() if n is not None},
        )
    return previews
