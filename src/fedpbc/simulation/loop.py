"""The round loop: timetable → segments → algorithm → metrics.

Who gets through in which round does not depend on the models, so the timetable is there from the
start. A client's local work up to its next contact is submitted to the engine as soon as its start
model exists, as one segment, and asked for in the round of that contact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm, Round, Update, mean
from fedpbc.engines.engine import Engine, one_thread
from fedpbc.engines.segment import Segment, all_finite
from fedpbc.errors import DivergedError, FedpbcError, InputError, Verbatim
from fedpbc.links import Timetable
from fedpbc.simulation.last_reports import LastReports, LastReportsInMemory
from fedpbc.simulation.views import AVERAGED_WEIGHT, views_of
from fedpbc.tasks.task import Evaluation, Task
from fedpbc.theory.run_bound import RunBound

__all__ = ["Metrics", "Simulation"]


@dataclass(frozen=True)
class Metrics:
    """What one evaluation found.

    Attributes:
        round: rounds completed.
        active: |A^t| in the round just completed.
        active_mean: its mean over all rounds so far.
        views: how good the model is in each view.
        staleness_mean: the mean over clients of the rounds since the last contact.
        staleness_max: the largest of them.
        consensus_error: (1/m) Σ‖x̄ − x_i‖², None where the clients' models are not all there.
        local_steps: made by all clients so far.
        uploads: how often a client's report arrived so far.
        seconds: spent so far, before a resumed run was stopped too.
        consensus_bound: what the paper's lemma allows for the mean of the consensus error over the
            rounds so far, None where it does not speak of the run; see docs/theory.md.

    Example:
        >>> from fedpbc import Quadratic, simulate
        >>> result = simulate(Quadratic([[8.0], [4.0]]), "fedavg", "always", rounds=10)
        >>> result.metrics[0].active
        2
    """

    round: int
    active: int
    active_mean: float
    views: dict[str, Evaluation]
    staleness_mean: float
    staleness_max: int
    consensus_error: float | None
    local_steps: int
    uploads: int
    seconds: float
    consensus_bound: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a line of metrics."""
        return {**vars(self), "views": {name: e.as_dict() for name, e in self.views.items()}}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Metrics:
        """From a line of metrics."""
        views = {name: Evaluation.from_dict(e) for name, e in line["views"].items()}
        return cls(**{**line, "views": views})


@dataclass
class Progress:
    """Everything about a run that changes from round to round, beside the algorithm's own state."""

    averaged: Tensor
    """The moving average of the server's model, in double precision."""
    held: list[Tensor]
    """The model each client holds, where they hold any; who got the same one shares it."""
    since: NDArray[np.int64]
    """The first round that the held model has not been trained in."""
    batches: NDArray[np.int64]
    """How many batches each client has used."""
    last_contact: NDArray[np.int64]
    """τ_i, the last round in which each uplink was up; −1 before the first."""
    reported: LastReports = field(default_factory=LastReportsInMemory)
    """What each client reported last, if anybody looks at it."""
    gradients: dict[str, float] = field(default_factory=dict)
    """What evaluations have seen of the gradients at x̄, for the bound on the consensus error."""
    round: int = 0
    contacts: int = 0
    local_steps: int = 0
    uploads: int = 0
    seconds: float = 0.0


class Simulation:
    """One algorithm on one task over one timetable.

    Example:
        >>> from fedpbc.algorithms import FedPBC, ServerInit
        >>> from fedpbc.engines import SerialEngine
        >>> from fedpbc.links import from_table
        >>> from fedpbc.tasks import Quadratic
        >>> task = Quadratic([[0.0], [100.0]])
        >>> simulation = Simulation(
        ...     task, FedPBC(ServerInit(task.init(), 2)), SerialEngine(task),
        ...     uplink=from_table(np.ones((50, 2), dtype=bool)), evaluate_every=50,
        ... )
        >>> [metrics] = simulation.run()
        >>> metrics.views["mean"].extra["distance"] < 0.1
        True
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        engine: Engine,
        uplink: Timetable,
        downlink: Timetable | None = None,
        *,
        evaluate_every: int = 10,
        views: Sequence[str] | None = None,
        reports: LastReports | None = None,
    ) -> None:
        """Set up a run at its beginning.

        Args:
            task: what is minimised.
            algorithm: fresh from its constructor.
            engine: where the local work runs.
            uplink: who gets through in which round; as many rounds as it has are run.
            downlink: who hears the answer; None: everyone.
            evaluate_every: rounds between evaluations; the last round is always evaluated.
            views: which models are judged; None: all that the algorithm has.
            reports: where the view «reported» keeps each client's last report; None: in memory.
        """
        for name, timetable in (("links", uplink), ("downlink", downlink)):
            if timetable is not None and timetable.clients != task.clients:
                given = Verbatim(f"for {timetable.clients} clients")
                raise InputError(name, given, f"for the task's {task.clients}")
            if timetable is not None and timetable.rounds < uplink.rounds:
                given = Verbatim(f"of {timetable.rounds} rounds")
                raise InputError(name, given, f"of all {uplink.rounds}")
        self.task, self.algorithm, self.engine = task, algorithm, engine
        self.uplink, self.downlink = uplink, downlink
        self.rounds = uplink.rounds
        self.evaluate_every = evaluate_every
        if algorithm.client_models and type(algorithm).correction is not Algorithm.correction:
            right = "without a correction: its clients' work begins before the server's next round"
            raise InputError("algorithm", Verbatim(f"{algorithm.name}, with client models"), right)
        if evaluate_every < 1:
            raise InputError("evaluate_every", evaluate_every, "at least 1")
        self.views = views_of(type(algorithm), views)
        self._x0 = algorithm.x
        self._lemma = RunBound(task, algorithm, uplink, downlink)
        # Otherwise everyone has the server's newest model, and nothing needs to be kept of it.
        self._clients_hold_models = algorithm.client_models or downlink is not None
        m = task.clients
        self.progress = Progress(
            averaged=algorithm.x.double(),
            held=[algorithm.x] * m,
            since=np.zeros(m, dtype=np.int64),
            batches=np.zeros(m, dtype=np.int64),
            last_contact=np.full(m, -1, dtype=np.int64),
        )
        if reports is not None and "reported" in self.views:
            self.progress.reported = reports
        # The models of the last evaluation, and after how many rounds that was.
        self._judged: tuple[int, dict[str, Tensor]] = -1, {}
        # Whose work has been submitted, by the round it is wanted in.
        self._due: dict[int, list[int]] = {}

    def run(self) -> Iterator[Metrics]:
        """Run all rounds that are left; gives the metrics of each evaluation."""
        for metrics in self.steps():
            if metrics is not None:
                yield metrics

    def steps(self) -> Iterator[Metrics | None]:
        """Run all rounds that are left, one an iteration; metrics where the round is evaluated."""
        progress, algorithm = self.progress, self.algorithm
        probabilities = (
            self.uplink.probabilities(progress.round) if algorithm.needs_probabilities else None
        )
        if algorithm.client_models:
            self._plan(range(self.task.clients))
        while progress.round < self.rounds:
            began, t = time.perf_counter(), progress.round
            round = Round(
                t,
                self.uplink.active(t),
                self.task.training.rate(t),
                self.task.training.local_steps,
                next(probabilities) if probabilities is not None else None,
            )
            with one_thread():
                moved = self._one_round(round)
                progress.round = t + 1
                if algorithm.client_models:
                    # Before the evaluation: an engine with processes of its own need not wait.
                    self._plan(moved)
                metrics = self._evaluate(round) if self._is_evaluated(t) else None
            progress.seconds += time.perf_counter() - began
            yield metrics and replace(metrics, seconds=progress.seconds)

    def _one_round(self, round: Round) -> list[int]:
        """Train, aggregate, broadcast; gives the clients that need new work."""
        progress, algorithm, t = self.progress, self.algorithm, round.number
        selected = algorithm.select(round).tolist()
        if not set(selected) <= set(round.active.tolist()):
            raise InputError(f"{algorithm.name}'s selection", selected, "a part of A^t")
        # Who trained up to here: contacts, and where every client is judged all the others too.
        ended = sorted(self._due.pop(t, [])) if algorithm.client_models else selected
        if not algorithm.client_models:
            for i in selected:
                self.engine.submit(self._segment(i, t, t))
        before = copied(algorithm.state())
        hears = None if self.downlink is None else self.downlink.up(t)
        arriving = UpdateStream(self, round, selected, hears)
        try:
            algorithm.aggregate(round, arriving if algorithm.one_pass else list(arriving))
            arriving.finish()
            if not all_finite(algorithm.x):
                raise DivergedError(client=None, round=t)
            others = {i: self.engine.result(i).end for i in ended if i not in arriving.clients}
        except FedpbcError:
            # So that what is saved now is where this round began.
            algorithm.restore(before)
            progress.reported.forget()
            raise

        self._broadcast(round, arriving, hears, others)
        progress.reported.keep()
        if len(round.active):
            progress.averaged = progress.averaged + AVERAGED_WEIGHT * (
                algorithm.x.double() - progress.averaged
            )
        progress.last_contact[round.active] = t
        progress.contacts += len(round.active)
        progress.uploads += len(selected)
        trainers = self.task.clients if algorithm.everyone_trains else len(selected)
        progress.local_steps += trainers * round.local_steps
        return ended

    def _broadcast(
        self,
        round: Round,
        arrived: UpdateStream,
        hears: NDArray[np.bool_] | None,
        others: Mapping[int, Tensor],
    ) -> None:
        """Who holds which model now: who got through, and others who trained up to here."""
        progress, x = self.progress, self.algorithm.x
        progress.batches[list(arrived.clients)] += round.local_steps
        if not self._clients_hold_models:
            return
        for i in arrived.clients:
            progress.held[i] = arrived.unanswered.get(i, x)
            progress.since[i] = round.number + 1
        for i, end in others.items():
            if self.algorithm.everyone_trains:
                progress.held[i] = end
            progress.since[i] = round.number + 1
        if hears is not None and not self.algorithm.client_models:
            # The server's model goes out to everyone who hears it, whether or not they reported.
            for i in np.flatnonzero(hears).tolist():
                progress.held[i] = x

    def _plan(self, clients: Sequence[int]) -> None:
        """Submit the next work of clients that have a model of their own."""
        t, every = self.progress.round, self.evaluate_every
        everyone = self.algorithm.everyone_trains
        # Everyone's model is wanted at the next evaluation, if it judges their mean.
        judged = min((t // every + 1) * every, self.rounds) - 1
        for i in clients if t < self.rounds else ():
            last = self.uplink.next_contact(i, t - 1)
            if everyone and "mean" in self.views:
                last = judged if last is None else min(last, judged)
            if last is not None:
                first = int(self.progress.since[i]) if everyone else last
                self._due.setdefault(last, []).append(i)
                self.engine.submit(self._segment(i, first, last))

    def _segment(self, client: int, first: int, last: int) -> Segment:
        everyone = self.algorithm.everyone_trains
        steps = self.task.training.local_steps
        return Segment(
            client,
            start=self._held(client),
            first_round=first,
            rounds=last - first + 1,
            # Who trains in every round has used all batches up to now, heard or not.
            first_batch=first * steps if everyone else int(self.progress.batches[client]),
            scale=self.algorithm.global_lr if everyone else 1.0,
            correction=self.algorithm.correction(client),
        )

    def _held(self, client: int) -> Tensor:
        """The model that a client would start from."""
        return self.progress.held[client] if self._clients_hold_models else self.algorithm.x

    def _is_evaluated(self, t: int) -> bool:
        return (t + 1) % self.evaluate_every == 0 or t + 1 == self.rounds

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on from here, to the same bits."""
        progress = {**vars(self.progress), "reported": self.progress.reported.state()}
        return {"progress": progress, "algorithm": self.algorithm.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where :meth:`state` was taken; only before the first step."""
        reports = self.progress.reported
        # First, since they may be damaged: then nothing has changed yet.
        reports.restore(state["progress"]["reported"])
        self.progress = Progress(**{**state["progress"], "reported": reports})
        self.algorithm.restore(state["algorithm"])

    def close(self) -> None:
        """Give up what is under way, and let go of processes and files."""
        try:
            self.engine.close()
        finally:
            self.progress.reported.close()

    def view_models(self) -> dict[str, Tensor]:
        """The model of each view; ``mean`` is only there right after an evaluated round."""
        progress, x = self.progress, self.algorithm.x
        if self._judged[0] == progress.round:
            # Not made again: all reports would have to be read from disk once more.
            return dict(self._judged[1])
        reported = (report for _, report in progress.reported.items())
        models = {
            "server": lambda: x,
            "averaged": lambda: progress.averaged.to(x.dtype),
            "mean": lambda: mean(progress.held),
            "reported": lambda: mean(reported) if len(progress.reported) else self._x0,
        }
        return {view: models[view]() for view in self.views}

    def _evaluate(self, round: Round) -> Metrics:
        progress, models = self.progress, self.view_models()
        self._judged = progress.round, models
        views = {view: self.task.evaluate(model) for view, model in models.items()}
        for view, evaluation in views.items():
            if not all(map(math.isfinite, (evaluation.test_loss, evaluation.train_loss or 0.0))):
                raise DivergedError(client=None, round=round.number, view=view)
        staleness = progress.round - progress.last_contact
        consensus_error = self._consensus_error(models.get("mean"))
        return Metrics(
            round=progress.round,
            active=len(round.active),
            active_mean=progress.contacts / progress.round,
            views=views,
            staleness_mean=float(staleness.mean()),
            staleness_max=int(staleness.max()),
            consensus_error=consensus_error,
            local_steps=progress.local_steps,
            uploads=progress.uploads,
            seconds=progress.seconds,
            consensus_bound=self._consensus_bound(models.get("mean")),
        )

    def _consensus_bound(self, center: Tensor | None) -> float | None:
        """What the lemma says; the evaluation's last look, so that a failed one leaves no trace."""
        if center is None:
            return None
        progress = self.progress
        progress.gradients, bound = self._lemma.look(
            progress.gradients, self._x0, center, progress.round
        )
        return bound

    def _consensus_error(self, center: Tensor | None) -> float | None:
        """(1/m) Σ‖x̄ − x_i‖²; each distinct model is measured once."""
        if center is None:
            return None
        squares: dict[int, float] = {}
        center = center.double()
        apart = torch.empty_like(center)
        for model in self.progress.held:
            if id(model) not in squares:
                torch.sub(center, model, out=apart)
                squares[id(model)] = float(torch.dot(apart, apart))
        error = sum(squares[id(model)] for model in self.progress.held) / self.task.clients
        if not math.isfinite(error):
            raise DivergedError(client=None, round=self.progress.round - 1)
        return error


class UpdateStream:
    """What the selected clients bring in one round, one after another as it is asked for.

    No more of it is in memory than whoever goes through it keeps, and the reports of clients that
    will not hear the answer: that is the model they go on with.
    """

    def __init__(
        self,
        simulation: Simulation,
        round: Round,
        selected: Sequence[int],
        hears: NDArray[np.bool_] | None,
    ) -> None:
        self.clients = dict.fromkeys(selected)
        self.unanswered: dict[int, Tensor] = {}
        self._hears = hears
        self._reported = simulation.progress.reported if "reported" in simulation.views else None
        self._engine, self._algorithm = simulation.engine, simulation.algorithm
        self._round = round
        self._updates, self._begun = self._arrive(), False

    def _arrive(self) -> Iterator[Update]:
        for i in self.clients:
            trained = self._engine.result(i)
            update = Update(i, trained.segment.start, trained.end)
            heard = self._hears is None or self._hears[i]
            if self._reported is not None or not heard:
                report = self._algorithm.report(self._round, update)
                if self._reported is not None:
                    self._reported.put(i, report)
                if not heard:
                    self.unanswered[i] = report
            yield update

    def finish(self) -> None:
        """Let those arrive that nobody looked at."""
        for _ in self._updates:
            continue

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Update]:
        if self._begun:
            name = self._algorithm.name
            raise FedpbcError(f"{name} goes through its updates again: it cannot be one_pass")
        self._begun = True
        return self._updates


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that changes in place do not reach; tensors are never changed in place."""
    return {
        name: value.copy() if isinstance(value, dict | np.ndarray) else value
        for name, value in state.items()
    }
