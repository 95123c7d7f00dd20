"""The updates of one round: each is fetched, clipped and reported when the algorithm reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm, Round, Update
from fedpbc.algorithms.client import ClientResult, Vectors
from fedpbc.engines.segment import STATISTICS, parameters_of
from fedpbc.errors import FedpbcError
from fedpbc.simulation.last_reports import LastReports
from fedpbc.simulation.model_parts import joined

__all__ = ["Start", "TrainedClient", "UpdateStream", "size_of"]

TrainedClient = Callable[[int], ClientResult]
"""Returns what a client uploads after its segment, and what it keeps; called once per client."""


@dataclass(frozen=True, eq=False)
class Start:
    """Where a client's work began.

    Attributes:
        model: the model before the segment.
        received: the model that the server last sent, from which an update is clipped.
        rounds: of local work since then.
        statistics: how many of the last values of both are running statistics.
    """

    model: Tensor
    received: Tensor
    rounds: int
    statistics: int = 0


class UpdateStream:
    """The updates of one round, each fetched when the algorithm reaches it.

    No more of them are in memory than the algorithm keeps, beside the reports of clients that will
    not hear the answer: they continue from those.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        round: Round,
        starts: Mapping[int, Start],
        trained: TrainedClient,
        hears: NDArray[np.bool_] | None,
        last_reports: LastReports | None,
        *,
        corrects: bool,
        report_key: Callable[[int], int] = lambda client: client,
    ) -> None:
        """Prepare for clients with these starts.

        ``starts`` are taken before the round: the algorithm may replace its model while updates
        still arrive. ``last_reports`` are written unless None; ``corrects``: reports are kept,
        under the number that ``report_key`` returns.
        """
        self.clients = dict.fromkeys(starts)
        self.unanswered: dict[int, Tensor] = {}
        self.states: dict[int, Vectors] = {}
        # Reports that are compared with the moving average, which is known after the last of them.
        self.reports: dict[int, Tensor] = {}
        self.bytes_up = 0
        # What each client uploaded of its running statistics.
        self.statistics: list[Tensor] = []
        self._algorithm, self._round, self._starts = algorithm, round, dict(starts)
        self._trained, self._hears = trained, hears
        self._last_reports, self._corrects = last_reports, corrects
        self._report_key = report_key
        self._updates, self._begun = self._fetch(), False

    def _fetch(self) -> Iterator[Update]:
        for client in self.clients:
            result = self._trained(client)
            self.bytes_up += size_of(result.upload)
            if result.state:
                self.states[client] = result.state
            names = ("model", STATISTICS)
            vectors = {name: v for name, v in result.upload.items() if name not in names}
            start = self._starts.pop(client)
            before, after, statistics = split(start, result.upload)
            self.statistics += [] if statistics is None else [statistics]
            sent = update = Update(client, before, after, vectors)
            if after is not None and (end := self._clipped(after, start)) is not after:
                update = Update(client, before, end, vectors)
            heard = self._hears is None or self._hears[client]
            if after is None:
                if not heard:
                    # A client whose rule throws its model away still has the one it started from.
                    kept = result.kept_model
                    held = joined(before, statistics) if kept is None else kept
                    self.unanswered[client] = held
            elif self._last_reports is not None or self._corrects or not heard:
                report = self._report(update, statistics)
                if self._corrects:
                    self.reports[client] = report
                if self._last_reports is not None:
                    self._last_reports.put(self._report_key(client), report)
                if not heard:
                    # It knows nothing of clipping: that is the server's.
                    kept = report
                    if sent is not update:
                        kept = self._report(sent, statistics)
                    self.unanswered[client] = kept
            yield update

    def _report(self, update: Update, statistics: Tensor | None) -> Tensor:
        """What a client reports; a copy, where the algorithm might change it in place."""
        report = self._algorithm.report(self._round, update)
        return joined(report if report is update.shared_end else report.clone(), statistics)

    def _clipped(self, end: Tensor, start: Start) -> Tensor:
        """The model that counts: the same object, if it need not be clipped."""
        received = parameters_of(start.received, start.statistics)
        clipped: Tensor = self._algorithm.aggregation.clipped(received, end, start.rounds)
        return clipped

    def exhaust(self) -> None:
        """Fetch the updates that the algorithm did not look at."""
        for _ in self._updates:
            continue

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Update]:
        if self._begun:
            name = self._algorithm.name
            raise FedpbcError(f"{name} iterates over its updates twice: it must not set one_pass")
        self._begun = True
        return self._updates


def split(start: Start, upload: Vectors) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The parameters before and after a client's work, and its statistics after it."""
    model, n = upload.get("model"), start.statistics
    if not n:
        return start.model, model, None
    statistics = upload[STATISTICS] if model is None else model[-n:]
    return start.model[:-n], None if model is None else model[:-n], statistics


def size_of(vectors: Vectors) -> int:
    """The bytes of some vectors."""
    return sum(vector.nbytes for vector in vectors.values())
