"""The round loop: timetable → segments → server state → metrics.

Who gets through in which round does not depend on the models, so the timetable is known from the
start. A client's local work up to its next contact is submitted to the engine as one segment as
soon as its start model exists, and its result is fetched in the round of that contact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fedpbc import defaults
from fedpbc.algorithms.algorithm import Algorithm, Round
from fedpbc.algorithms.client import ClientResult, Vectors
from fedpbc.algorithms.trial import check_step_sum
from fedpbc.engines.engine import Engine, one_thread
from fedpbc.engines.segment import KEPT_LAYERS
from fedpbc.errors import DivergedError, InputError
from fedpbc.links import Timetable
from fedpbc.options import check_kind, check_type
from fedpbc.simulation.evaluation_schedule import EvaluationSchedule
from fedpbc.simulation.last_reports import LastReports
from fedpbc.simulation.lookahead import Lookahead
from fedpbc.simulation.membership import MembershipChange
from fedpbc.simulation.metrics import Metrics, Observer
from fedpbc.simulation.model_parts import ModelParts, mean_layers
from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.views import stores_reports
from fedpbc.tasks import LocalTraining
from fedpbc.tasks.task import Task, WithBatchGradients, WithClientAccuracy

__all__ = ["Simulation", "check_training"]


class Simulation:
    """One algorithm on one task over one timetable.

    Attributes:
        server: the server's state.
        rounds: T.
        evaluations: after which rounds the model is evaluated.
        seconds: time spent in rounds so far, including the time before a resume.

    Example:
        >>> import numpy as np
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
        evaluate_every: int = defaults.EVALUATE_EVERY,
        evaluate_every_at_end: int | None = None,
        views: Sequence[str] | None = None,
        last_reports: LastReports | None = None,
        observers: Sequence[Observer] = (),
        membership: Mapping[int, MembershipChange] | None = None,
    ) -> None:
        """Set up a run before round 0.

        Args:
            algorithm: fresh from its constructor.
            uplink: who gets through in which round; its number of rounds is T.
            downlink: who hears the answer; None: everyone.
            evaluate_every: rounds between evaluations; the last round is always evaluated.
            evaluate_every_at_end: the same for the last rounds, which are averaged; None: no other.
            views: which models are evaluated; None: all that the algorithm has.
            last_reports: where to keep each client's last report; None: in memory.
            observers: add values to the metrics of every evaluation.
            membership: who joins or leaves before which round. The task and the links are those of
                all clients that ever take part, the algorithm is of those of round 0.
        """
        check_type("evaluate_every", evaluate_every, Annotated[int, Ge(1)])
        at_end = Annotated[int, Ge(1)] | None
        check_type("evaluate_every_at_end", evaluate_every_at_end, at_end)
        check_kind("algorithm", algorithm, Algorithm, "an algorithm, made from its class")
        for member, kind in ((task, "local_steps"), (engine, "submit")):
            if not hasattr(member, kind):
                name = "task" if kind == "local_steps" else "engine"
                raise InputError(name, member, f"a {name}: it has no {kind}()")
        for name, timetable in (
            ("links", uplink),
            ("downlink", uplink if downlink is None else downlink),
        ):
            check_kind(name, timetable, Timetable, "a Timetable")
            if timetable.clients != task.clients:
                raise InputError(
                    f"{name} is for {timetable.clients} clients, but the task has {task.clients}"
                )
            if timetable.rounds < uplink.rounds:
                raise InputError(
                    f"{name} has {timetable.rounds} rounds, but the run has {uplink.rounds}"
                )
        check_client_rule(algorithm, task)
        self.task, self.engine = task, engine
        self.uplink, self.downlink = uplink, downlink
        self.rounds = uplink.rounds
        self.evaluations = EvaluationSchedule(uplink.rounds, evaluate_every, evaluate_every_at_end)
        self.server = ServerState(
            algorithm,
            task.training,
            views=views,
            # Without the view, no file is needed.
            last_reports=last_reports if stores_reports(type(algorithm), views) else None,
            lossy_downlink=downlink is not None,
            parts=ModelParts.of(task.init(), task.layout),
        )
        self.seconds = 0.0
        self._observers = observers
        self._membership = membership or {}
        joining = sum(change.joined for change in self._membership.values())
        if algorithm.clients + joining != task.clients:
            raise InputError(
                f"the algorithm has {algorithm.clients} clients and {joining} join, but the task "
                f"has {task.clients}"
            )
        # Whoever is not there yet, or no longer, is down, whatever the links say.
        self._up, self._hearing = uplink, downlink
        if self._membership:
            first, end = rounds_of_members(algorithm.clients, self._membership, uplink.rounds)
            self._up = uplink.within(first, end)
            self._hearing = downlink and downlink.within(first, end)
        # The models of the last evaluation, and after how many rounds it was.
        self._evaluated: tuple[int, dict[str, Tensor]] = -1, {}
        self._last_round: Round | None = None
        self._lookahead = Lookahead(
            self._up, lambda client, last: engine.submit(self.server.segment(client, last))
        )

    @property
    def algorithm(self) -> Algorithm:
        """The server's rule, with its model."""
        return self.server.algorithm

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.server.round

    @property
    def views(self) -> tuple[str, ...]:
        """Which models are evaluated."""
        return self.server.views

    def run(self) -> Iterator[Metrics]:
        """Run all remaining rounds; yields the metrics of each evaluation."""
        for metrics in self.steps():
            if metrics is not None:
                yield metrics

    def steps(self) -> Iterator[Metrics | None]:
        """Run all remaining rounds, one per iteration; yields metrics if it was evaluated."""
        server, algorithm = self.server, self.algorithm
        probabilities = (
            self.uplink.probabilities(server.round) if algorithm.needs_probabilities else None
        )
        if algorithm.client_models and server.round < self.rounds:
            if self._synchronises:
                self._submit_next(range(algorithm.clients))
            else:
                self._lookahead.begin(range(algorithm.clients), server.round)
        while server.round < self.rounds:
            began = time.perf_counter()
            with one_thread():
                if server.round in self._membership:
                    new = self._membership[server.round].apply(server)
                    self._submit_next(new if algorithm.client_models else ())
                round = server.open_round(
                    self._up.active(server.round),
                    None if probabilities is None else next(probabilities),
                )
                ended = self._run_round(round)
                if algorithm.client_models:
                    # Before the evaluation: an engine with processes of its own need not wait.
                    self._submit_next(ended)
                self._last_round = round
                metrics = self._evaluate(round) if self._is_evaluated(round.number) else None
            self.seconds += time.perf_counter() - began
            yield metrics and replace(metrics, seconds=self.seconds)

    def evaluate_last_round(self) -> Metrics | None:
        """Repeat the evaluation of the last round, which an interrupt may have cut short.

        None if there was none.
        """
        round = self._last_round
        if round is None or not self._is_evaluated(round.number):
            return None
        with one_thread():
            return self._evaluate(round)

    def _run_round(self, round: Round) -> list[int]:
        """Train, aggregate, broadcast; returns the clients whose segments ended."""
        server, t = self.server, round.number
        selected = server.select(round)
        ended = selected
        if self.algorithm.client_models:
            if not self._synchronises:
                self._lookahead.extend(self.algorithm.clients, t)
            ended = self._lookahead.ended(t)
        else:
            for client in selected:
                self.engine.submit(server.segment(client, t))
        server.close_round(
            round,
            selected,
            self._result,
            hears=None if self._hearing is None else self._hearing.up(t),
            synchronised=ended,
        )
        return ended

    def _result(self, client: int) -> ClientResult:
        trained = self.engine.result(client)
        return ClientResult(trained.upload, trained.state, trained.kept_model)

    @property
    def _synchronises(self) -> bool:
        """Whether everyone's model is needed at evaluations: they include the mean of all."""
        return self.algorithm.everyone_trains and "mean" in self.views

    def _submit_next(self, clients: Sequence[int]) -> None:
        """Submit the next segments of clients that have a model of their own."""
        t = self.round
        evaluated = self.evaluations.next_after(t) - 1
        if t < self.rounds:
            if gone := set(self.server.left):
                clients = [i for i in clients if i not in gone]
            self._lookahead.submit_next(clients, t, evaluated if self._synchronises else None)

    def _is_evaluated(self, t: int) -> bool:
        return self.evaluations.is_due(t + 1)

    def view_models(self) -> dict[str, Tensor]:
        """The model of each view; ``mean`` only right after an evaluated round.

        Layers that clients keep to themselves are the mean of theirs.
        """
        if self._evaluated[0] == self.round:
            # Not computed again: all reports would have to be read from disk once more.
            return dict(self._evaluated[1])
        return self._complete(self.server.view_models())

    def _complete(self, models: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add the mean of the layers that clients keep to models without them."""
        if not self.task.layout.kept:
            return dict(models)
        layers = mean_layers(map(self.server.client_state, self.server.members()))
        return {view: torch.cat([model, layers]) for view, model in models.items()}

    def client_accuracies(self) -> dict[str, list[float | None]]:
        """How often each view's model is right about each client's own held-out samples.

        ``own`` is each client's own model, where the view ``mean`` has them at hand; only right
        after an evaluated round. None for clients that are not there, and empty for a task that
        cannot tell.
        """
        task, server = self.task, self.server
        if not isinstance(task, WithClientAccuracy):
            return {}
        with one_thread():
            accuracies = {
                view: self._accuracies(task, model) for view, model in self.view_models().items()
            }
            if "mean" in self.views:
                models = dict(zip(server.members(), server.client_models(), strict=True))
                accuracies["own"] = [
                    task.client_accuracy(i, self._with_layers(server.newest_state(i), models[i]))
                    if i in models
                    else None
                    for i in range(task.clients)
                ]
        return {
            name: values
            for name, values in accuracies.items()
            if any(v is not None for v in values)
        }

    def _accuracies(self, task: WithClientAccuracy, model: Tensor) -> list[float | None]:
        """One view's accuracy for each client, with the layers that the client keeps."""
        left = set(self.server.left)
        if not self.task.layout.kept:
            found = task.client_accuracies(model)
            return [None if i in left else each for i, each in enumerate(found)]
        shared = model[: self.task.layout.sent]
        return [
            None
            if i in left
            else task.client_accuracy(i, self._with_layers(self.server.client_state(i), shared))
            for i in range(self.task.clients)
        ]

    def _with_layers(self, state: Vectors, model: Tensor) -> Tensor:
        """A model with the layers that a client keeps."""
        return torch.cat([model, state[KEPT_LAYERS]]) if self.task.layout.kept else model

    def _evaluate(self, round: Round) -> Metrics:
        server = self.server
        shared = server.view_models()
        models = self._complete(shared)
        self._evaluated = server.round, models
        views = {view: self.task.evaluate(model.clone()) for view, model in models.items()}
        for view, evaluation in views.items():
            if not all(map(math.isfinite, (evaluation.test_loss, evaluation.train_loss or 0.0))):
                raise DivergedError(client=None, round=round.number, view=view)
        # Not by the list of members: of a million clients, that is a million numbers of Python.
        staleness = server.round - np.delete(server.last_contact, server.left)
        return Metrics(
            round=server.round,
            active=len(round.active),
            active_mean=server.contacts / server.round,
            views=views,
            staleness_mean=float(staleness.mean()),
            staleness_max=int(staleness.max()),
            consensus_error=self._consensus_error(shared.get("mean")),
            local_steps=server.local_steps,
            uploads=server.uploads,
            bytes_up=server.bytes_up,
            bytes_down=server.bytes_down,
            seconds=self.seconds,
            # Last: an evaluation that fails must leave no trace in an observer's state.
            observed={each.name: each.observe(server.round, models) for each in self._observers},
        )

    def _consensus_error(self, center: Tensor | None) -> float | None:
        """(1/m) Σ‖x̄ − x_i‖²; each distinct model is measured once."""
        if center is None:
            return None
        squares: dict[int, float] = {}
        center = center.double()
        difference = torch.empty_like(center)
        models = self.server.client_models()
        for model in models:
            if id(model) not in squares:
                torch.sub(center, model, out=difference)
                squares[id(model)] = float(torch.dot(difference, difference))
        error = sum(squares[id(model)] for model in models) / len(models)
        if not math.isfinite(error):
            raise DivergedError(client=None, round=self.round - 1)
        return error

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to continue to the same bits."""
        return {
            "server": self.server.state(),
            "observers": {observer.name: observer.state() for observer in self._observers},
            "seconds": self.seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`; only before the first step."""
        state = upgrade_state(state)
        self.server.restore(state["server"])
        for observer in self._observers:
            observer.restore(state["observers"].get(observer.name, {}))
        self.seconds = state["seconds"]

    def close(self) -> None:
        """Abandon unfinished work and release processes and files."""
        try:
            self.engine.close()
        finally:
            self.server.last_reports.close()


def rounds_of_members(
    clients: int, membership: Mapping[int, MembershipChange], rounds: int
) -> tuple[list[int], list[int]]:
    """For each client the round that it is there from, and the one that it is gone from."""
    first = [0] * clients
    for t, change in sorted(membership.items()):
        first += [t] * change.joined
    end = [rounds] * len(first)
    for t, change in membership.items():
        for client in change.left:
            end[client] = t
    return first, end


def check_training(algorithm: Algorithm, training: LocalTraining) -> None:
    """Raise InputError if the client's side does not fit the local steps."""
    rule = algorithm.client_rule()
    if rule is None:
        return
    if rule.has_own_steps and not training.is_plain:
        option = training.not_plain
        expected = f"left out: {algorithm.name} takes the local steps itself"
        raise InputError(f"train.{option}", getattr(training, option), expected)
    check_step_sum(rule, algorithm.x, algorithm.message(0), training.step_sum)


def check_client_rule(algorithm: Algorithm, task: Task) -> None:
    """Raise InputError if the client's side does not fit the algorithm or the task."""
    rule = algorithm.client_rule()
    if rule is None:
        return
    if algorithm.client_models and "model" not in rule.uploads:
        raise InputError(
            f"algorithm {algorithm.name} has client models, so its clients must upload 'model'"
        )
    check_training(algorithm, task.training)
    if rule.has_own_steps and not isinstance(task, WithBatchGradients):
        kind = type(task).__name__
        raise InputError("task", kind, f"one with batch_gradient(), for {algorithm.name}")
    if rule.has_own_steps and task.layout.kept:
        expected = f"'average': {algorithm.name} takes the local steps itself, of the model only"
        raise InputError("running_statistics", "client", expected)


def upgrade_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a simulation's state from the layout of earlier checkpoints."""
    if "progress" not in state:
        return state
    server = {**state["progress"], "algorithm": state["algorithm"]}
    observers = {"consensus_bound": server.pop("gradients")}
    return {"seconds": server.pop("seconds"), "observers": observers, "server": server}
