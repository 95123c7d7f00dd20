"""A Flower strategy that runs an algorithm of this package.

It takes the place of Flower's ``FedAvg``, whose options it has. It overrides what Flower documents
for strategies, and uses nothing that is private to Flower.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms import Algorithm
from fedpbc.algorithms.robustness import check_aggregation
from fedpbc.errors import FedpbcError, InputError
from fedpbc.flower.arguments import (
    FLOWER_OPTIONS,
    check_rate,
    checked_aggregation,
    checked_file,
    checked_flower_options,
    checked_link_log,
    checked_numbers,
    checked_start,
)
from fedpbc.flower.array_layout import BadRecordError, SetupError
from fedpbc.flower.client_numbers import ClientNumbers
from fedpbc.flower.job import Job, JobSettings
from fedpbc.flower.messages import PROTOCOL, Identity, WorkReply, WorkRequest
from fedpbc.flower.metrics import averaged, consistent
from fedpbc.flower.requirements import check_known, check_runs_in_apps
from fedpbc.flower.result import ViewsResult
from fedpbc.links.link_log import link_log
from fedpbc.options import check_kind, checked, nearest
from fedpbc.simulation.norm_bound import NORM_FACTOR
from fedpbc.simulation.views import DEPLOYABLE, views_of
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.tensors import load_state, save_state
from fedpbc.text import printable

__all__ = ["AlgorithmStrategy"]

LOG = logging.getLogger("flwr.fedpbc")
GREETING_SECONDS = 60.0
"""How long new nodes may take to say who they are; whoever does not is asked again next round.

Before the job's first round they have the time of a round: processes and libraries start then."""
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class AlgorithmStrategy(flower.FedAvg):  # type: ignore[misc]
    """Base of the strategies: :attr:`algorithm` says which algorithm one runs."""

    algorithm: ClassVar[type[Algorithm]]

    def __init__(
        self,
        *flower_arguments: Any,
        clients: int | None = None,
        view: str = "server",
        views: Sequence[str] | None = None,
        global_lr: float = 1.0,
        learning_rate: float | Callable[[int], float] | None = None,
        local_steps: int | None = None,
        checkpoint: str | Path | None = None,
        links: str | Path | None = None,
        norm_factor: float = NORM_FACTOR,
        norm_bound: float = 0.0,
        aggregation: str | Mapping[str, Any] | Aggregation = Aggregation.name,
        **options: Any,
    ) -> None:
        """Set up a strategy.

        Args:
            flower_arguments: those of Flower's ``FedAvg``, as its keywords in ``options``.
            clients: m, the number of clients; None: as many as there are when the job starts.
            view: the model that is evaluated, and that the result has as ``arrays``.
            views: the models that the result holds; None: all that a server can have. Views other
                than ``server`` and ``averaged`` store two models per client.
            global_lr: η_g.
            learning_rate: the app's step size, or a function of the round, which counts from 1;
                only for algorithms that compute with it.
            local_steps: the app's steps per round; likewise.
            checkpoint: a file that is written after each round. If it exists when the strategy is
                started, its job goes on.
            links: a CSV file of who got through when, for ``fedpbc advise --trace``.
            norm_factor: an upload is refused if its norm is so many times the usual one; 0: never.
            norm_bound: likewise for the norm itself, per round of local work.
            aggregation: how uploads are combined: "mean", "trimmed_mean",
                "median", or a mapping such as ``{"name": "trimmed_mean", "trim": 0.1, "clip": 5}``.
            options: the algorithm's, and Flower's.
        """
        algorithm_options = {
            name: value for name, value in options.items() if name not in FLOWER_OPTIONS
        }
        of_flower = {name: value for name, value in options.items() if name in FLOWER_OPTIONS}
        super().__init__(**checked_flower_options(flower_arguments, of_flower))
        kind = self.algorithm
        numbers = checked_numbers(
            clients=clients,
            local_steps=local_steps,
            global_lr=global_lr,
            norm_factor=norm_factor,
            norm_bound=norm_bound,
        )
        self.checkpoint, self.links = (
            checked_file("checkpoint", checkpoint),
            checked_link_log("links", links),
        )
        if self.links is not None and self.fraction_train < 1:
            expected = "1 with links=…: whoever is not asked would be in the log as out of reach"
            raise InputError("fraction_train", self.fraction_train, expected)
        own = inspect.signature(AlgorithmStrategy.__init__).parameters
        names = [name for name in own if name not in ("self", "flower_arguments", "options")]
        algorithm_options = checked(
            kind.__init__, algorithm_options, also=(*names, *FLOWER_OPTIONS)
        )
        check_runs_in_apps(kind, algorithm_options)
        combined = checked_aggregation(aggregation)
        check_aggregation(kind, algorithm_options, combined)
        known = {"learning_rate": learning_rate, "local_steps": local_steps}
        check_known(kind, algorithm_options, known)
        deployable = [v for v in views_of(kind, views) if v in DEPLOYABLE]
        if not isinstance(view, str) or view not in deployable:
            raise InputError("view", view, nearest(view, deployable))
        rate = learning_rate
        if rate is not None and not callable(rate):
            number = check_rate(rate)
            rate = lambda round: number  # noqa: E731
        self.view, self.clients = view, numbers.pop("clients")
        self.settings = JobSettings(
            kind,
            algorithm_options,
            views=deployable,
            learning_rate=rate,
            aggregation=combined,
            arrays_key=self.arrayrecord_key,
            config_key=self.configrecord_key,
            **numbers,
        )
        self._initial: ArrayRecord | None = None
        self._job: Job | None = None
        self._numbers = ClientNumbers(0)
        self._restored: Mapping[str, Any] | None = None
        # Rounds before any client was known, and before this process.
        self._empty_rounds = self._offset = 0
        self._timeout: float | None = None
        self._asked: dict[int, int] = {}
        self._seconds, self._began = 0.0, time.monotonic()
        # What Flower is given for the next round; whether this process has counted a reply; and
        # what the replies of the open round say that nobody but the app's author can mend.
        self._arrays: ArrayRecord | None = None
        self._has_counted = False
        self._lasting: dict[int, str] = {}
        # Nodes whose reply to a greeting was an error.
        self._failed: set[int] = set()

    def summary(self) -> None:
        """Log the algorithm and Flower's options."""
        options = ", ".join(f"{k}={v}" for k, v in self.settings.options.items())
        LOG.info("\t├──> Algorithm: %s (%s)", self.algorithm.name, options or "no options")
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> ViewsResult:
        """Run the job, or what is left of a restored one; ``num_rounds`` are all its rounds."""
        num_rounds, timeout = checked_start(
            *(grid, initial_arrays, num_rounds, timeout),
            *(train_config, evaluate_config, evaluate_fn),
        )
        self._timeout = timeout
        self._begin(initial_arrays)
        done = self._offset
        if num_rounds < done:
            expected = f"at least {done}: so many rounds the job has had already"
            raise InputError("num_rounds", num_rounds, expected)
        arrays = self._job.views()[self.view] if self._job else initial_arrays
        self._arrays = arrays
        if done:
            LOG.info("The job goes on after round %d", done)
        result = super().start(
            grid,
            arrays,
            max(num_rounds - done, 0),
            timeout,
            train_config,
            evaluate_config,
            None if evaluate_fn is None else partial(_evaluated, evaluate_fn, done),
        )
        self._write_links(final=True)
        if num_rounds > done and not self._has_counted and self.fraction_train:
            LOG.warning("no client was counted in %d rounds: nothing is trained", num_rounds - done)
        views = self._job.views() if self._job else {}
        return ViewsResult.of(result, done, views.get(self.view, arrays), views)

    def _begin(self, initial: ArrayRecord) -> None:
        """Begin a job, or the rest of one that was restored."""
        self._initial, self._job = initial, None
        self._empty_rounds = self._offset = 0
        self._arrays, self._has_counted = initial, False
        self._failed = set()
        self._seconds, self._began = 0.0, time.monotonic()
        state, self._restored = self._restored, None
        if state is None and self.checkpoint is not None and self.checkpoint.exists():
            state = load_state(self.checkpoint)
        if state is not None:
            self._continue(initial, state)

    def _continue(self, initial: ArrayRecord, state: Mapping[str, Any]) -> None:
        try:
            self._job = Job.restored(self.settings, initial, state["job"])
            self._numbers = ClientNumbers.restored(state["numbers"])
            self._seconds, self._offset = float(state["seconds"]), self._job.round - 1
            if self.clients not in (None, self._job.clients):
                started = f"clients is {self.clients}, but the job started with {self._job.clients}"
                raise InputError(started)
        except FedpbcError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, BadRecordError):
            file = "the state" if self.checkpoint is None else self.checkpoint
            raise InputError(f"{file} is not that of a strategy's job") from None
        self._began -= self._seconds

    def state(self) -> dict[str, Any]:
        """Everything that another process needs to go on; see :meth:`restore`."""
        if self._job is None:
            raise InputError("the strategy has no state before its first round")
        return {
            "job": self._job.state(),
            "numbers": self._numbers.state(),
            "seconds": self._seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the next :meth:`start` go on from :meth:`state`."""
        self._restored = state

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each node for the rounds that it owes, with the model that it is owed."""
        if self._initial is None:
            self._begin(arrays)
        elif arrays is not self._arrays and dict(arrays) != dict(self._arrays or {}):
            raise InputError(
                "the model was changed between two rounds, which this strategy would not send on: "
                "do not wrap it in another one, such as those of differential privacy"
            )
        self._lasting = {}
        number = self._job.round if self._job else self._empty_rounds + 1
        # Flower chooses the nodes, and logs that.
        messages = super().configure_train(number, arrays, config, grid)
        nodes = sorted(message.metadata.dst_node_id for message in messages)
        self._identify(nodes, config, grid)
        self._asked = {}
        if self._job is None:
            return []
        requests = []
        for node in nodes:
            if (client := self._numbers.of.get(node)) is not None:
                records = {**self._job.records(client), self.configrecord_key: config}
                requests.append(self._message(node, records))
                self._asked[node] = client
        return requests

    def _message(self, node: int, records: dict[str, Any]) -> Message:
        # Not longer than the round: a node that comes back need not do the work of past rounds.
        content = RecordDict(records)
        return Message(content, node, MessageType.TRAIN, ttl=self._timeout)

    def _identify(self, nodes: Sequence[int], config: ConfigRecord, grid: Grid) -> None:
        """Ask nodes that are new who they are, and start the job when the first have answered."""
        unknown = [node for node in nodes if self._job is None or node not in self._numbers.of]
        if not unknown:
            return
        number = self._job.round if self._job else self._empty_rounds + 1
        keys = {"arrays_key": self.arrayrecord_key, "config_key": self.configrecord_key}
        greeting = WorkRequest("", number, number, 0, 1.0, **keys, is_greeting=True).record()
        messages = []
        for node in unknown:
            # An app without the mod trains on a greeting. Without a model it fails, which might be
            # the link; with one its reply tells.
            arrays = self._initial if node in self._failed else ArrayRecord()
            records = {self.arrayrecord_key: arrays, self.configrecord_key: config}
            messages.append(self._message(node, {**records, PROTOCOL: greeting}))
        seconds = self._timeout
        if self._job is not None:
            seconds = min(GREETING_SECONDS, seconds or GREETING_SECONDS)
        identities: dict[int, Identity] = {}
        for reply in grid.send_and_receive(messages, timeout=seconds):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    self._failed.add(node)
                    raise BadRecordError(last_line(reply))
                greeted = WorkReply.read(reply.content)
                if greeted.problem:
                    raise SetupError(greeted.problem)
                identities[node] = greeted.identity
            except BadRecordError as error:
                reason = printable(error)
                LOG.warning("node %d did not greet, as catch_up_mod does: %s", node, reason)
                if isinstance(error, SetupError):
                    self._lasting[node] = reason
        online = set(grid.get_node_ids())
        if self._job is None and identities:
            self._start_job(identities.values(), len(online))
        for node in sorted(identities):
            if problem := self._numbers.bind(node, identities[node], online):
                LOG.warning("node %d takes no part: %s", node, problem)

    def _start_job(self, identities: Iterable[Identity], online: int) -> None:
        """Start the job, with as many clients as are known of."""
        assert self._initial is not None
        known = [max(each.partition + 1, each.partitions) for each in identities]
        clients = self.clients or max(online, *known)
        self._job = Job(self.settings, self._initial, clients)
        self._numbers = ClientNumbers(clients)
        for _ in range(self._empty_rounds):
            self._job.close_round()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Count the replies, refuse those that cannot be counted, and close the round."""
        job = self._job
        if job is None:
            self._stop_if_hopeless()
            self._empty_rounds += 1
            return None, None
        contents, errors, refused = {}, 0, 0
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                errors += 1
                LOG.info("\t> node %d: %s", node, last_line(reply))
                continue
            try:
                client = self._accept(job, node, reply.content)
                contents[client] = reply.content
            except BadRecordError as error:
                refused += 1
                LOG.warning("refused the reply of node %d: %s", node, printable(error))
                if isinstance(error, SetupError):
                    self._lasting[node] = printable(error)
        if not contents:
            self._stop_if_hopeless()
        closed = job.close_round()
        self._has_counted |= bool(closed.active)
        for client, reason in closed.refused.items():
            del contents[client]
            LOG.warning("refused the upload of client %d: %s", client, reason)
        self._seconds = time.monotonic() - self._began
        LOG.info(
            "aggregate_train: round %d counts %d of %d clients; %d refused, %d errors",
            *(closed.number, len(closed.active), job.clients),
            *(refused + len(closed.refused), errors),
        )
        if self.checkpoint is not None:
            # Before anything of the next round is sent.
            save_state(self.checkpoint, self.state())
        self._write_links(final=False)
        ordered = [contents[client] for client in sorted(contents)]
        metrics = averaged(ordered, self.weighted_by_key, self.train_metrics_aggr_fn)
        self._arrays = job.views()[self.view]
        return self._arrays, metrics

    def _stop_if_hopeless(self) -> None:
        """End a job in which no client can take part, as an error: nothing would be trained.

        Later on, when others have been counted, a faulty client is a link that is down.
        """
        if self._lasting and not self._has_counted:
            node, reason = min(self._lasting.items())
            raise InputError(f"no client can take part. Node {node}: {reason}")

    def _accept(self, job: Job, node: int, content: RecordDict) -> int:
        if node not in self._asked:
            raise BadRecordError("it was not asked")
        reply = WorkReply.read(content)
        if self._numbers.changed(node, reply.identity):
            raise BadRecordError("its partition-id is not what it was")
        job.accept(self._asked[node], reply, content)
        return self._asked[node]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower does; rounds count from the job's first."""
        messages: Iterable[Message] = super().configure_evaluate(
            server_round + self._offset, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As Flower does; replies that others do not agree with are left out."""
        received = list(replies)
        contents = [r.content for r in received if not r.has_error()]
        usable = consistent(contents, self.weighted_by_key)
        kept = [r for r in received if r.has_error() or any(r.content is c for c in usable)]
        if len(kept) < len(received):
            LOG.warning("%d evaluations are left out: wrong metrics", len(received) - len(kept))
        return super().aggregate_evaluate(server_round + self._offset, kept)

    def _write_links(self, *, final: bool) -> None:
        """Write who got through when; less often once that is long."""
        if self.links is None or self._job is None or not self._job.active:
            return
        rounds = len(self._job.active)
        if final or rounds <= 100 or rounds % 10 == 0:
            seconds = max(round(self._seconds / rounds, 3), 0.001)
            write_atomically(self.links, link_log(self._job.active, self._job.clients, seconds))


def last_line(reply: Message) -> str:
    """What an error is about; in a simulation its text is a whole traceback."""
    return printable((str(reply.error.reason).strip().splitlines() or [""])[-1], 200)


def _evaluated(
    evaluate_fn: EvaluateFn, done: int, round: int, model: ArrayRecord
) -> MetricRecord | None:
    """What the app's function says of a model, of which Flower would only find out later."""
    metrics = evaluate_fn(round + done, model)
    kind = "a function that returns a MetricRecord, or None"
    check_kind("evaluate_fn", metrics, (MetricRecord, type(None)), kind)
    return metrics
