"""The server's state, shared by the simulator and real fleets.

The state holds the server's model, which model each client holds since when, the last reports and
the moving average. A round is opened with the clients that got through and closed with what they
uploaded. The simulator knows these clients from its timetable, a fleet from what arrived in time;
nothing else differs, except that the simulator also holds the clients' own state, which in a fleet
is on the devices. If closing a round fails, the state is what it was before the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm, Round, Update, mean
from fedpbc.algorithms.client import ClientResult, Vectors
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, all_finite
from fedpbc.errors import DivergedError, FedpbcError, InputError
from fedpbc.interrupts import held_back
from fedpbc.simulation.last_reports import LastReports
from fedpbc.simulation.views import AVERAGED_WEIGHT, views_of

__all__ = ["ServerState", "TrainingSchedule"]

TrainedClient = Callable[[int], ClientResult]
"""Returns what a client uploads after its segment, and what it keeps; called once per client."""


class TrainingSchedule(Protocol):
    """What the server knows of the clients' training; a LocalTraining is one."""

    @property
    def local_steps(self) -> int:
        """s."""

    def rate(self, t: int) -> float:
        """η_t."""


class ServerState:
    """An algorithm, and the bookkeeping that every algorithm needs.

    Attributes:
        algorithm: with the server's model x^t.
        round: rounds completed.
        held: the model each client holds; clients that received the same model share it. Only
            maintained where clients do not all hold the server's newest model.
        since: for each client, the first round that its held model has not been trained in.
        batches: for each client, the number of batches it has used.
        last_contact: τ_i, the last round in which each uplink was up; −1 before the first.
        averaged: the moving average of the server's model, in double precision.
        last_reports: what each client reported last, for the view ``reported``, and from m on its
            difference to the moving average then, for the view ``corrected``.
        messages: the vectors that each client received with its held model; only maintained where
            that is not the server's newest.
        client_states: what each client keeps, once the server has counted the upload with it; only
            in a simulation.
        last_upload: for each client, the last round whose upload was counted; −1 before the first.
        bytes_up, bytes_down: bytes of the vectors that counted uploads and their requests carried;
            None in a run that an earlier version began.
        contacts: the sum of |A^t| over all rounds.
        uploads: uploads counted in all rounds.
        local_steps: local steps of all clients in all rounds.

    Example:
        >>> import torch
        >>> from fedpbc.algorithms import FedPBC, ServerInit
        >>> from fedpbc.tasks import LocalTraining
        >>> state = ServerState(FedPBC(ServerInit(torch.zeros(1), clients=2)), LocalTraining())
        >>> round = state.open_round([0])
        >>> upload = ClientResult({"model": torch.tensor([4.0])})
        >>> state.close_round(round, [0], lambda client: upload)
        >>> state.segment(0, last=1).first_round, state.segment(1, last=1).first_round
        (1, 0)
    """

    def __init__(
        self,
        algorithm: Algorithm,
        training: TrainingSchedule,
        *,
        views: Sequence[str] | None = None,
        last_reports: LastReports | None = None,
        lossy_downlink: bool = False,
    ) -> None:
        """Set up the state before round 0, with an algorithm fresh from its constructor.

        ``views`` are the models to provide; None: all that the algorithm has. The last reports are
        stored in memory by default. With a lossy downlink, clients may miss the server's answer.
        """
        self.x0 = algorithm.x
        m = algorithm.clients
        self.algorithm, self.training = algorithm, training
        self.views = views_of(type(algorithm), views)
        self.last_reports = LastReports() if last_reports is None else last_reports
        self.lossy_downlink = lossy_downlink
        self.round = 0
        self.held: list[Tensor] = [algorithm.x] * m
        self.since = np.zeros(m, dtype=np.int64)
        self.batches = np.zeros(m, dtype=np.int64)
        self.last_contact = np.full(m, -1, dtype=np.int64)
        self.averaged = algorithm.x.double()
        self.contacts = self.uploads = self.local_steps = 0
        self.bytes_up: int | None = 0
        self.bytes_down: int | None = 0
        self.last_upload = np.full(m, -1, dtype=np.int64)
        self.rule = algorithm.client_rule()
        self._initial_state = {} if self.rule is None else self.rule.initial_state(self.x0)
        self.client_states: dict[int, Vectors] = {}
        self.messages: dict[int, Vectors] = {}
        if self._holds_models and (first := algorithm.message(0)):
            self.messages = {i: first if i == 0 else algorithm.message(i) for i in range(m)}
        # The models of clients that train on until their next contact, for the view ``mean``.
        self._ahead: dict[int, Tensor] = {}

    @property
    def _holds_models(self) -> bool:
        """Whether clients may hold other models than the server's newest."""
        return self.algorithm.client_models or self.lossy_downlink

    def start_model(self, client: int) -> Tensor:
        """The model that the client's next segment starts from."""
        return self.held[client] if self._holds_models else self.algorithm.x

    def message(self, client: int) -> Vectors:
        """The vectors that came, or come, with that model."""
        if self._holds_models:
            return self.messages.get(client, {})
        return self.algorithm.message(client)

    def client_state(self, client: int) -> Vectors:
        """What the client keeps; only in a simulation."""
        return self.client_states.get(client, self._initial_state)

    def client_models(self) -> list[Tensor]:
        """The model of each client after the last round, once all are synchronised."""
        return [self._ahead.get(i, model) for i, model in enumerate(self.held)]

    def segment(self, client: int, last: int) -> Segment:
        """The client's local work up to round ``last``."""
        algorithm = self.algorithm
        everyone = algorithm.everyone_trains
        first = int(self.since[client]) if everyone and algorithm.client_models else last
        return Segment(
            client,
            start=self.start_model(client),
            first_round=first,
            rounds=last - first + 1,
            # A client that trains in every round has used all batches up to now, heard or not.
            first_batch=first * self.training.local_steps
            if everyone
            else int(self.batches[client]),
            scale=algorithm.global_lr if everyone else 1.0,
            rule=self.rule,
            received=self.message(client),
            state=self.client_state(client),
        )

    def open_round(
        self,
        active: Sequence[int] | NDArray[np.int64],
        probabilities: NDArray[np.float64] | None = None,
    ) -> Round:
        """What the algorithm is told about the next round, in which ``active`` get through."""
        return Round(
            self.round,
            np.asarray(active, dtype=np.int64),
            self.training.rate(self.round),
            self.training.local_steps,
            probabilities,
        )

    def select(self, round: Round) -> list[int]:
        """The clients whose uploads the algorithm uses, ascending."""
        selected: list[int] = self.algorithm.select(round).tolist()
        if not set(selected) <= set(round.active.tolist()):
            raise InputError(f"{self.algorithm.name}'s selection", selected, "a part of A^t")
        return selected

    def close_round(
        self,
        round: Round,
        selected: Sequence[int],
        trained: TrainedClient,
        *,
        hears: NDArray[np.bool_] | None = None,
        synchronised: Collection[int] = (),
    ) -> None:
        """Aggregate the uploads and broadcast the result.

        Args:
            round: from :meth:`open_round`.
            selected: from :meth:`select`.
            trained: returns what a selected client uploads and keeps, or the model of a
                synchronised one.
            hears: whose downlink is up; None: everyone's.
            synchronised: further clients whose model is brought up to this round although they did
                not get through: an evaluation needs the mean of all clients.
        """
        algorithm, t = self.algorithm, round.number
        # In-place changes do not reach these copies; tensors are never changed in place.
        before = {
            name: value.copy() if isinstance(value, dict | np.ndarray) else value
            for name, value in algorithm.state().items()
        }
        uploads = UpdateStream(self, round, selected, trained, hears)
        try:
            with one_thread():
                algorithm.aggregate(round, uploads if algorithm.one_pass else list(uploads))
                uploads.exhaust()
                self._check_model(t)
                if not all_finite(algorithm.x):
                    raise DivergedError(client=None, round=t)
                averaged = self._next_average(round)
                for i, report in uploads.reports.items():
                    difference = (report.double() - averaged).to(report.dtype)
                    self.last_reports.put(algorithm.clients + i, difference)
            others = {i: trained(i).upload for i in synchronised if i not in uploads.clients}
        except BaseException:  # Also Ctrl-C: a checkpoint of the round before is written then.
            algorithm.restore(before)
            self.last_reports.discard()
            raise
        # A checkpoint after Ctrl-C must find all of the round, or nothing of it.
        with held_back():
            self.averaged = averaged
            self._commit(
                round, uploads, hears, {i: vectors["model"] for i, vectors in others.items()}
            )

    def _check_model(self, t: int) -> None:
        """Raise InputError unless the algorithm's model is of the same kind as before round 0."""
        found, expected = _described(self.algorithm.x), _described(self.x0)
        if found != expected:
            raise InputError(
                f"{self.algorithm.name} failed in round {t + 1}: its x is {found}, but should be "
                f"{expected}"
            )

    def _next_average(self, round: Round) -> Tensor:
        """The moving average after the round."""
        if not len(round.active):
            return self.averaged
        return self.averaged + AVERAGED_WEIGHT * (self.algorithm.x.double() - self.averaged)

    def _commit(
        self,
        round: Round,
        uploads: UpdateStream,
        hears: NDArray[np.bool_] | None,
        others: Mapping[int, Tensor],
    ) -> None:
        """End the round: from now on it counts."""
        algorithm, t = self.algorithm, round.number
        self._broadcast(round, uploads, hears, others)
        self.last_reports.commit()
        self.client_states.update(uploads.states)
        self.last_contact[round.active] = t
        self.last_upload[list(uploads.clients)] = t
        self.contacts += len(round.active)
        self.uploads += len(uploads)
        if self.bytes_up is not None:
            self.bytes_up += uploads.bytes_up
        trainers = algorithm.clients if algorithm.everyone_trains else len(uploads)
        self.local_steps += trainers * round.local_steps
        self.round = t + 1

    def _broadcast(
        self,
        round: Round,
        uploads: UpdateStream,
        hears: NDArray[np.bool_] | None,
        others: Mapping[int, Tensor],
    ) -> None:
        """Update which model each client holds, and count what was sent."""
        algorithm, x = self.algorithm, self.algorithm.x
        self.batches[list(uploads.clients)] += round.local_steps
        self._ahead = {}
        if not self.lossy_downlink and self.bytes_down is not None:
            # Each upload answers one request, which brought the model that the client started from.
            self.bytes_down += uploads.bytes_down
        if not self._holds_models:
            return
        for i in uploads.clients:
            self.held[i] = uploads.unanswered.get(i, x)
            self.since[i] = round.number + 1
        for i, model in others.items():
            if not algorithm.everyone_trains:
                self.since[i] = round.number + 1
            elif self.rule is None:
                self.held[i], self.since[i] = model, round.number + 1
            else:
                # Its work is one piece from contact to contact: it is not cut in two here.
                self._ahead[i] = model
        if hears is not None and not algorithm.client_models:
            # The server's model goes out to everyone who hears it, whether or not they reported.
            receivers = np.flatnonzero(hears).tolist()
            self.held = [
                x if heard else model for heard, model in zip(hears, self.held, strict=True)
            ]
        else:
            receivers = [i for i in uploads.clients if i not in uploads.unanswered]
        for i in receivers:
            if message := algorithm.message(i):
                self.messages[i] = message
            if self.lossy_downlink and self.bytes_down is not None:
                self.bytes_down += x.nbytes + size_of(message)

    def view_models(self) -> dict[str, Tensor]:
        """The model of each view; ``mean`` is exact only while all clients are synchronised."""
        x, stored = self.algorithm.x, self.last_reports
        models: dict[str, Callable[[], Tensor]] = {
            "server": lambda: x,
            "averaged": lambda: self.averaged.to(x.dtype),
            "mean": lambda: mean(self.client_models()),
            "reported": lambda: self._reported() if len(stored) else self.x0,
            "corrected": self._corrected,
        }
        with one_thread():
            return {view: models[view]() for view in self.views}

    def _reported(self) -> Tensor:
        """The mean of the clients' last reports."""
        return mean(each for _, each in self.last_reports.items(range(self.algorithm.clients)))

    def _corrected(self) -> Tensor:
        """The moving average, plus the mean of the clients' last differences to it."""
        m = self.algorithm.clients
        if not self.last_reports.count(range(m, 2 * m)):
            # Nobody has reported yet, or only to an earlier version, which kept no differences.
            return self.averaged.to(self.x0.dtype)
        differences = (each.double() for _, each in self.last_reports.items(range(m, 2 * m)))
        return (self.averaged + mean(differences)).to(self.x0.dtype)

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to continue to the same bits."""
        return {
            **{name: getattr(self, name) for name in STATE},
            "algorithm": self.algorithm.state(),
            "reported": self.last_reports.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`; what an older version did not count is None from now on."""
        # First, since the reports may be damaged: then nothing has changed yet.
        self.last_reports.restore(state["reported"])
        self.algorithm.restore(state["algorithm"])
        not_counted = {"bytes_up": None, "bytes_down": None}
        vars(self).update(not_counted | {name: state[name] for name in STATE if name in state})


STATE = (
    "round",
    "contacts",
    "uploads",
    "local_steps",
    "x0",
    "averaged",
    "held",
    "since",
    "batches",
    "last_contact",
    "last_upload",
    "messages",
    "client_states",
    "bytes_up",
    "bytes_down",
)


class UpdateStream:
    """The updates of one round, each fetched when the algorithm reaches it.

    No more of them are in memory than the algorithm keeps, beside the reports of clients that will
    not hear the answer: they continue from those.
    """

    def __init__(
        self,
        state: ServerState,
        round: Round,
        selected: Sequence[int],
        trained: TrainedClient,
        hears: NDArray[np.bool_] | None,
    ) -> None:
        self.clients = dict.fromkeys(selected)
        self.unanswered: dict[int, Tensor] = {}
        self.states: dict[int, Vectors] = {}
        # Reports that are compared with the moving average, which is known after the last of them.
        self.reports: dict[int, Tensor] = {}
        self.bytes_up, self.bytes_down = 0, 0
        self._algorithm, self._round = state.algorithm, round
        # Taken now: the algorithm may replace its model while updates still arrive.
        self._starts = {client: state.start_model(client) for client in selected}
        for client, start in self._starts.items():
            self.bytes_down += start.nbytes + size_of(state.message(client))
        self._trained, self._hears = trained, hears
        self._last_reports = state.last_reports if "reported" in state.views else None
        self._corrects = "corrected" in state.views
        self._updates, self._begun = self._fetch(), False

    def _fetch(self) -> Iterator[Update]:
        for client in self.clients:
            result = self._trained(client)
            self.bytes_up += size_of(result.upload)
            if result.state:
                self.states[client] = result.state
            vectors = {name: v for name, v in result.upload.items() if name != "model"}
            update = Update(client, self._starts.pop(client), result.upload.get("model"), vectors)
            heard = self._hears is None or self._hears[client]
            if update.end is None:
                if not heard:
                    # A client whose rule throws its model away still has the one it started from.
                    kept = result.kept_model
                    self.unanswered[client] = update.start if kept is None else kept
            elif self._last_reports is not None or self._corrects or not heard:
                report = self._algorithm.report(self._round, update)
                if self._corrects:
                    self.reports[client] = report
                if self._last_reports is not None:
                    self._last_reports.put(client, report)
                if not heard:
                    self.unanswered[client] = report
            yield update

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


def size_of(vectors: Vectors) -> int:
    """The bytes of some vectors."""
    return sum(vector.nbytes for vector in vectors.values())


def _described(model: object) -> str:
    """What kind of vector a model is."""
    if not isinstance(model, Tensor):
        return f"of type {type(model).__name__}"
    kind = str(model.dtype).removeprefix("torch.")
    layout = "" if model.layout == torch.strided else " and sparse"
    return f"{kind} of shape {tuple(model.shape)} on {model.device}{layout}"
