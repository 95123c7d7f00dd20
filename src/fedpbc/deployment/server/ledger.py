"""What the server knows and owes: the round loop's bookkeeping, with A^t found out, not drawn.

The simulator knows its timetable beforehand; here a client is in A^t if its answer to round t was
taken before the round ended. Everything else is the same: the algorithms are the simulator's, and
so is the work that is asked for. A client's next work is a function of this ledger alone, so
what the network loses, repeats or delays changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm, Round, Update, mean
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, all_finite
from fedpbc.errors import DivergedError, FedpbcError
from fedpbc.options import options_of
from fedpbc.simulation.last_reports import LastReports, LastReportsInMemory
from fedpbc.simulation.server_state import copy_of_state
from fedpbc.simulation.views import AVERAGED_WEIGHT, DEPLOYABLE, views_of
from fedpbc.tasks import LocalTraining

__all__ = ["Closed", "Ledger", "options_in"]


@dataclass(frozen=True)
class Closed:
    """A round that is over.

    Attributes:
        round: t.
        active: A^t.
        selected: whom of them the algorithm took.
    """

    round: int
    active: list[int]
    selected: list[int]


class Ledger:
    """The server's state: its algorithm, and for each client what it holds and since when.

    Example:
        >>> import torch
        >>> from fedpbc.algorithms import FedPBC, ServerInit
        >>> x0 = torch.zeros(1)
        >>> ledger = Ledger(FedPBC(ServerInit(x0, clients=2)), LocalTraining())
        >>> ledger.close({0: torch.tensor([4.0])}).active
        [0]
        >>> ledger.work(0).first_round, ledger.work(1).first_round
        (1, 0)
    """

    def __init__(
        self, algorithm: Algorithm, training: LocalTraining, reports: LastReports | None = None
    ) -> None:
        """Set up a fleet's ledger at its beginning.

        Args:
            algorithm: fresh from its constructor.
            training: the clients' local steps.
            reports: where each client's last report is kept; None: in memory.
        """
        m = algorithm.clients
        self.algorithm, self.training = algorithm, training
        self.views = tuple(view for view in views_of(type(algorithm)) if view in DEPLOYABLE)
        self.reported: LastReports = LastReportsInMemory() if reports is None else reports
        self.x0 = algorithm.x
        self.round = 0
        self.uploads = 0
        self.averaged = algorithm.x.double()
        # What the server owes each client: its next work starts from it. Shared where it is one.
        self.held: list[Tensor] = [algorithm.x] * m
        # The first round that the held model has not been trained in.
        self.since = np.zeros(m, dtype=np.int64)
        self.batches = np.zeros(m, dtype=np.int64)
        self.last_contact = np.full(m, -1, dtype=np.int64)

    def work(self, client: int) -> Segment:
        """What the client is to do for the round under way."""
        algorithm, t, steps = self.algorithm, self.round, self.training.local_steps
        everyone = algorithm.everyone_trains
        first = int(self.since[client]) if everyone else t
        return Segment(
            client,
            start=self.held[client] if algorithm.client_models else algorithm.x,
            first_round=first,
            rounds=t - first + 1,
            # Who trains in every round has used all batches up to now, heard or not.
            first_batch=first * steps if everyone else int(self.batches[client]),
            scale=algorithm.global_lr if everyone else 1.0,
            correction=algorithm.correction(client),
        )

    def close(self, ends: Mapping[int, Tensor]) -> Closed:
        """End the round with what arrived: the models after the work that was asked for.

        If it fails, the ledger is where the round began.
        """
        algorithm, t = self.algorithm, self.round
        active = np.array(sorted(ends), dtype=np.int64)
        steps = self.training.local_steps
        round = Round(t, active, self.training.rate(t), steps)
        before = copy_of_state(algorithm)
        try:
            with one_thread():
                selected = algorithm.select(round).tolist()
                updates = [Update(i, self.work(i).start, ends[i]) for i in selected]
                if "reported" in self.views:
                    for update in updates:
                        self.reported.put(update.client, algorithm.report(round, update))
                algorithm.aggregate(round, updates)
            if not all_finite(algorithm.x):
                raise DivergedError(client=None, round=t)
        except FedpbcError:
            algorithm.restore(before)
            self.reported.forget()
            raise
        self.reported.keep()
        for i in selected:
            self.held[i], self.since[i] = algorithm.x, t + 1
            self.batches[i] += steps
        if len(active):
            with one_thread():
                self.averaged = self.averaged + AVERAGED_WEIGHT * (
                    algorithm.x.double() - self.averaged
                )
        self.last_contact[active] = t
        self.uploads += len(selected)
        self.round = t + 1
        return Closed(t, active.tolist(), selected)

    def view_models(self) -> dict[str, Tensor]:
        """The model of each view that a server can have."""
        x = self.algorithm.x
        reported = (report for _, report in self.reported.items())
        models = {
            "server": lambda: x,
            "averaged": lambda: self.averaged.to(x.dtype),
            "reported": lambda: mean(reported) if len(self.reported) else self.x0,
        }
        with one_thread():
            return {view: models[view]() for view in self.views}

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on from here, to the same bits."""
        own = ("round", "uploads", "x0", "averaged", "held", "since", "batches", "last_contact")
        state = {name: getattr(self, name) for name in own}
        return {
            **state,
            "algorithm": self.algorithm.state(),
            "reported": self.reported.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where :meth:`state` was taken."""
        rest = dict(state)
        # First, since they may be damaged: then nothing has changed yet.
        self.reported.restore(rest.pop("reported"))
        self.algorithm.restore(rest.pop("algorithm"))
        vars(self).update(rest)


def options_in(algorithm: Algorithm) -> dict[str, Any]:
    """What the server's rule was told, by the names in ``fleet.toml``; clients are not.

    Example:
        >>> import torch
        >>> from fedpbc.algorithms import FedAU, ServerInit
        >>> options_in(FedAU(ServerInit(torch.zeros(1), clients=2), cutoff=9))
        {'train.global_learning_rate': 1.0, 'algorithm.cutoff': 9}
    """
    found = {"train.global_learning_rate": algorithm.global_lr}
    for name in options_of(type(algorithm).__init__):
        if hasattr(algorithm, name):
            found[f"algorithm.{name}"] = getattr(algorithm, name)
    plain = bool | int | float | str
    return {name: v if isinstance(v, plain) else str(v) for name, v in found.items()}
