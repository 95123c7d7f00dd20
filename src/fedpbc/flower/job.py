"""The server's side of one job: what each client is sent, and what is done with its replies.

It does no input or output, and knows clients by their numbers: a strategy sends and receives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms import Algorithm, ClientRule, ServerInit
from fedpbc.algorithms.trial import trial_sizes
from fedpbc.engines.segment import STATISTICS
from fedpbc.errors import InputError
from fedpbc.flower.arguments import check_rate
from fedpbc.flower.array_layout import (
    BadRecordError,
    SetupError,
    initial_vector,
    median_of,
    read_array,
)
from fedpbc.flower.messages import (
    INITIAL,
    PROTOCOL,
    RECEIVED,
    UPLOAD,
    RuleRequest,
    WorkReply,
    WorkRequest,
)
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.simulation.norm_bound import NORM_FACTOR, NormBound, close_bounded_round
from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.shared_vectors import snapshot
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["ClosedRound", "Job", "JobSettings"]


@dataclass(frozen=True)
class JobSettings:
    """What a strategy was made with.

    Attributes:
        algorithm, options: the algorithm and its options.
        global_lr: η_g.
        views: the models that the result holds; None: all that a server can have.
        learning_rate: η_t of a round that counts from 1; None if the algorithm need not know.
        local_steps: of each round; None likewise.
        norm_factor, norm_bound: see :class:`NormBound`.
        aggregation: how uploads are combined instead of by the mean.
        arrays_key, config_key: the names of the app's records.
    """

    algorithm: type[Algorithm]
    options: Mapping[str, Any] = field(default_factory=dict)
    global_lr: float = 1.0
    views: Sequence[str] | None = None
    learning_rate: Callable[[int], float] | None = None
    local_steps: int | None = None
    norm_factor: float = NORM_FACTOR
    norm_bound: float = 0.0
    aggregation: Aggregation = field(default_factory=Aggregation)
    arrays_key: str = "arrays"
    config_key: str = "config"

    def rate(self, t: int) -> float:
        """η_t of round t, which counts from 0 as in the algorithms; 1 if nobody needs it."""
        if self.learning_rate is None:
            return 1.0
        try:
            rate = self.learning_rate(t + 1)
        except TypeError as error:
            raise InputError(
                "learning_rate", self.learning_rate, "a number or a function of the round"
            ) from error
        return check_rate(rate, t + 1)


@dataclass(frozen=True)
class AppTraining:
    """What is known of an app's training."""

    settings: JobSettings

    @property
    def local_steps(self) -> int:
        """Steps per round; 1 if the algorithm need not know."""
        return self.settings.local_steps or 1

    def rate(self, t: int) -> float:
        """η_t."""
        return self.settings.rate(t)


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client uploaded in the current round."""

    vectors: dict[str, Tensor]
    token: str
    exact: dict[str, Array]


@dataclass(frozen=True)
class ClosedRound:
    """What became of a round.

    Attributes:
        number: from 1.
        active: the clients that got through.
        refused: the reason for each client whose upload was refused when the round was closed.
    """

    number: int
    active: list[int]
    refused: dict[int, str]


class Job:
    """One training job: an algorithm, the model of each client, and the round that is open.

    Example:
        >>> from fedpbc.algorithms import FedPBC
        >>> initial = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
        >>> job = Job(JobSettings(FedPBC), initial, clients=2)
        >>> job.close_round().active, job.work(1).first_round, job.work(1).round
        ([], 1, 2)
    """

    def __init__(self, settings: JobSettings, initial: ArrayRecord, clients: int) -> None:
        self.settings = settings
        self.layout, x0 = initial_vector(initial)
        trained = self.layout.parameters.size
        model, statistics = torch.from_numpy(x0[:trained]), torch.from_numpy(x0[trained:])
        init = ServerInit(model, clients, settings.global_lr, settings.aggregation)
        algorithm = settings.algorithm(init, **settings.options)
        self.server = ServerState(
            algorithm,
            AppTraining(settings),
            views=DEPLOYABLE if settings.views is None else settings.views,
            parts=ModelParts(model, statistics if len(statistics) else None),
        )
        self.id = uuid4().hex
        self.norms = NormBound(settings.norm_factor, settings.norm_bound)
        self.tokens: dict[int, str] = {}
        self.active: list[list[int]] = []
        self._sizes = upload_sizes(algorithm)
        self._uploads: dict[int, Upload] = {}
        self._records: dict[int, tuple[Tensor, ArrayRecord]] = {}
        # Whole numbers and truth values: the first, the server's, and each client's own.
        self._first_exact = self.exact = self.layout.exact(initial)
        self._exact_of: dict[int, dict[str, Array]] = {}

    @property
    def clients(self) -> int:
        """m."""
        return self.server.algorithm.clients

    @property
    def round(self) -> int:
        """The number of the open round, from 1."""
        return self.server.round + 1

    def work(self, client: int) -> WorkRequest:
        """What a client is asked for in the open round."""
        segment = self.server.segment(client, self.server.round)
        participations = int(self.server.batches[client]) // self.server.training.local_steps
        rule = None
        if segment.rule is not None:
            rates = map(self.settings.rate, range(segment.first_round, segment.last_round + 1))
            rule = RuleRequest(
                self.settings.algorithm.name,
                json.dumps(dict(self.settings.options)),
                tuple(rates),
                self.settings.local_steps or 0,
                self.tokens.get(client, ""),
            )
        return WorkRequest(
            job=self.id,
            round=self.round,
            first_round=segment.first_round + 1,
            participations=participations,
            scale=segment.scale,
            arrays_key=self.settings.arrays_key,
            config_key=self.settings.config_key,
            keeps_training=self.settings.algorithm.everyone_trains,
            rule=rule,
        )

    def records(self, client: int) -> dict[str, Any]:
        """The records of a client's request, but for the app's configuration."""
        work = self.work(client)
        records: dict[str, Any] = {
            self.settings.arrays_key: self._start(client),
            PROTOCOL: work.record(),
        }
        if received := self.server.message(client):
            records[RECEIVED] = vector_record(received)
        rule = self.server.rule
        if rule is not None and rule.keeps and client not in self.tokens:
            # Zeros need not be sent.
            is_zero = type(rule).initial_state is ClientRule.initial_state
            if not is_zero:
                records[INITIAL] = vector_record(self.server.initial_state())
        return records

    def _start(self, client: int) -> ArrayRecord:
        """The model that a client starts from, with its own counters."""
        floats = self._record(self.server.start_model(client))
        own = self._exact_of.get(client, self._first_exact)
        if not own:
            return floats
        parts = {**floats, **own}
        return ArrayRecord({name: parts[name] for name in self.layout.names})

    def _record(self, model: Tensor) -> ArrayRecord:
        """A model as a record; clients that are sent the same model share it."""
        if id(model) not in self._records:
            # With the model, so that no other can have its id.
            self._records[id(model)] = model, self.layout.record(model.numpy())
        return self._records[id(model)][1]

    def accept(self, client: int, reply: WorkReply, content: RecordDict) -> None:
        """Take a client's upload for the open round; a BadRecordError if it cannot be counted."""
        if reply.job != self.id or reply.round != self.round:
            raise BadRecordError("it replies to another round")
        if reply.problem:
            raise (SetupError if reply.is_lasting else BadRecordError)(reply.problem)
        if client in self._uploads:
            raise BadRecordError("its client has replied already")
        arrays = dict(content.array_records)
        extra = dict(arrays.pop(UPLOAD, {}))
        vectors: dict[str, NDArray[Any]] = {}
        exact: dict[str, Array] = {}
        has_model = "model" in self._sizes
        # A rule that does not upload the model uploads what in it is not trained.
        layout = self.layout if has_model else self.layout.others
        if layout.names:
            if len(arrays) != 1:
                raise BadRecordError(f"{len(arrays)} ArrayRecords, not one")
            [record] = arrays.values()
            exact, values = layout.exact(record), layout.vector(record)
            if values.size:
                vectors["model" if has_model else STATISTICS] = values
        names = set(self._sizes) - {"model"}
        if set(extra) != names:
            raise BadRecordError(f"it uploads {sorted(extra)}, not {sorted(names)}")
        dtype = str(self.layout.dtype)
        for name, array in extra.items():
            size = self._sizes[name]
            vectors[name] = read_array(array, name, None if size is None else (size,), dtype).copy()
            if not 1 <= vectors[name].size <= self.layout.parameters.size:
                raise BadRecordError(f"{name!r} has {vectors[name].size} values")
        tensors = {name: torch.from_numpy(vector) for name, vector in vectors.items()}
        self._uploads[client] = Upload(tensors, reply.token, exact)

    def close_round(self) -> ClosedRound:
        """Aggregate what was accepted, and open the next round."""
        number, uploads = self.round, self._uploads
        vectors = {i: upload.vectors for i, upload in uploads.items()}
        active, counted, refused = close_bounded_round(self.server, vectors, self.norms)
        self.tokens |= {i: uploads[i].token for i in counted if uploads[i].token}
        self._count_exact({i: uploads[i].exact for i in counted})
        self.active.append(active)
        self._uploads, self._records = {}, {}
        return ClosedRound(number, active, refused)

    def _count_exact(self, uploaded: Mapping[int, Mapping[str, Array]]) -> None:
        """Keep what counted uploads hold besides floating-point numbers.

        As in a simulation a counter is the client's own, which it gets back as it was. The server's
        model has the median of the round's: a value that a client has, and not rounded.
        """
        for client, exact in uploaded.items():
            # Most of them never change, and then all clients share one.
            self._exact_of[client] = {
                name: first if exact[name].data == first.data else exact[name]
                for name, first in self._first_exact.items()
            }
        if uploaded:
            own = [self._exact_of[client] for client in uploaded]
            self.exact = {name: median_of([o[name] for o in own]) for name in self.exact}

    def views(self) -> dict[str, ArrayRecord]:
        """The models that a server can deploy, by view."""
        models = self.server.view_models().items()
        return {view: self.layout.record(model.numpy(), self.exact) for view, model in models}

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to continue; the open round is begun again."""
        table = np.zeros((len(self.active), self.clients), dtype=bool)
        for t, active in enumerate(self.active):
            table[t, active] = True
        return {
            "job": self.id,
            **self._origin(),
            "clients": self.clients,
            "views": list(self.server.views),
            "tokens": dict(self.tokens),
            "table": table,
            "norms": self.norms.state(),
            "exact": _values_of(self.exact),
            "exact of clients": {i: _values_of(own) for i, own in self._exact_of.items()},
            "server": snapshot(self.server.state()),
        }

    def _origin(self) -> dict[str, Any]:
        """What must be the same when a job is continued."""
        return {
            "algorithm": self.settings.algorithm.name,
            "options": json.dumps(dict(self.settings.options), sort_keys=True),
            "global_lr": self.settings.global_lr,
            "local_steps": self.settings.local_steps,
            "aggregation": _text_of(self.settings.aggregation),
            "names": list(self.layout.names),
            "shapes": [list(shape) for shape in self.layout.shapes],
            "dtypes": list(self.layout.dtypes),
        }

    def _restored_exact(self, state: Mapping[str, Any]) -> dict[str, Array]:
        """What :func:`_values_of` made of them; a BadRecordError if it made it of others."""
        arrays = {}
        for name, first in self._first_exact.items():
            data = np.asarray(state[name], np.uint8).tobytes()
            array = Array(first.dtype, first.shape, first.stype, data)
            read_array(array, name, tuple(first.shape), first.dtype)
            arrays[name] = first if data == first.data else array
        return arrays

    @classmethod
    def restored(cls, settings: JobSettings, initial: ArrayRecord, state: Mapping[str, Any]) -> Job:
        """Continue from :meth:`state`; an InputError names what is not as it was."""
        job = cls(settings, initial, int(state["clients"]))
        for name, value in job._origin().items():
            # Earlier versions could only average.
            begun = (
                state.get(name, _text_of(Aggregation())) if name == "aggregation" else state[name]
            )
            if begun != value:
                raise InputError(f"{name} is {value}, but the job started with {begun}")
        # These are made of the reports of all rounds; the others of the models alone.
        if late := {"reported", "corrected"} & set(job.server.views) - set(state["views"]):
            raise InputError(f"views has {sorted(late)[0]}, which the job has not stored so far")
        job.id, job.tokens = str(state["job"]), dict(state["tokens"])
        job.active = [np.flatnonzero(row).tolist() for row in state["table"]]
        job.norms.restore(state["norms"])
        job.exact = job._restored_exact(state["exact"])
        job._exact_of = {
            int(i): job._restored_exact(own) for i, own in state["exact of clients"].items()
        }
        job.server.restore(snapshot(state["server"]))
        return job


def _values_of(arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    # As bytes: not every type of whole numbers has one in the file of a checkpoint.
    return {name: np.frombuffer(array.data, np.uint8) for name, array in arrays.items()}


def _text_of(aggregation: Aggregation) -> str:
    return json.dumps(asdict(aggregation))


def upload_sizes(algorithm: Algorithm) -> dict[str, int | None]:
    """How many values each vector of an upload has; None where that is not known."""
    rule, x0 = algorithm.client_rule(), algorithm.x
    if rule is None:
        return {"model": len(x0)}
    trial = trial_sizes(rule, x0, algorithm.message(0))
    return {name: len(x0) if name == "model" else trial.get(name) for name in rule.uploads}


def vector_record(vectors: Mapping[str, Tensor]) -> ArrayRecord:
    """Flat vectors as a record."""
    return ArrayRecord({name: Array(vector.numpy()) for name, vector in vectors.items()})
