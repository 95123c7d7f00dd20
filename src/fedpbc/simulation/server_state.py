"""The server's state, shared by the simulator and real fleets.

The state holds the server's model, which model each client holds since when, the last reports and
the moving average. A round is opened with the clients that got through and closed with what they
uploaded. The simulator knows these clients from its timetable, a fleet from what arrived in time;
nothing else differs, except that the simulator also holds the clients' own state, which in a fleet
is on the devices. If closing a round fails, the state is what it was before the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc.algorithms.algorithm import Algorithm, Round, mean
from fedpbc.algorithms.client import Vectors
from fedpbc.engines.engine import one_thread
from fedpbc.engines.segment import Segment, all_finite, parameters_of
from fedpbc.errors import DivergedError, InputError, explained, one_line
from fedpbc.interrupts import held_back
from fedpbc.simulation.held_models import HeldModels
from fedpbc.simulation.last_reports import LastReports, difference_key, report_key
from fedpbc.simulation.model_parts import ModelParts, initial_state, joined
from fedpbc.simulation.shared_vectors import SharedVectors, Versions, snapshot
from fedpbc.simulation.update_stream import Start, TrainedClient, UpdateStream, size_of
from fedpbc.simulation.views import AVERAGED_WEIGHT, views_of

__all__ = ["ServerState", "TrainingSchedule"]


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
        statistics: the running statistics that belong to the server's model; empty without any.
        kept_layers: the initial layers that each client keeps to itself; empty without any.
        moved_from, moved_since: the held models, and since when, of clients that an evaluation has
            brought up to date since; only where updates are clipped.
        first_clients, left: how many clients there were in round 0, and who has left since.
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
        >>> from fedpbc.algorithms import ClientResult, FedPBC, ServerInit
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
        parts: ModelParts | None = None,
    ) -> None:
        """Set up the state before round 0, with an algorithm fresh from its constructor.

        ``views`` are the models to provide; None: all that the algorithm has. The last reports are
        stored in memory by default. With a lossy downlink, clients may miss the server's answer.
        ``parts`` has what the initial model has besides the parameters that the algorithm sees.
        """
        # First of all its model: an algorithm that did not begin as its base class says so.
        x, m = algorithm.x, algorithm.clients
        parts = ModelParts(x) if parts is None else parts
        self.statistics = x[:0] if parts.statistics is None else parts.statistics
        # What clients hold is never the algorithm's own: it may change that in place.
        self._shared = SharedVectors()
        shared = self._shared.of(x)
        self.x0 = joined(shared, self.statistics)
        self._model = shared, self.statistics, self.x0
        self.algorithm, self.training = algorithm, training
        self.views = views_of(type(algorithm), views)
        self.last_reports = LastReports() if last_reports is None else last_reports
        self.lossy_downlink = lossy_downlink
        self.round = 0
        self.held = HeldModels(self.x0, m)
        self.since = np.zeros(m, dtype=np.int64)
        self.batches = np.zeros(m, dtype=np.int64)
        self.last_contact = np.full(m, -1, dtype=np.int64)
        self.averaged = self.x0.to(torch.float64, copy=True)
        self.contacts = self.uploads = self.local_steps = 0
        self.bytes_up: int | None = 0
        self.bytes_down: int | None = 0
        self.last_upload = np.full(m, -1, dtype=np.int64)
        self.rule = algorithm.client_rule()
        self.kept_layers = algorithm.x[:0] if parts.kept_layers is None else parts.kept_layers
        self._initial_state = self.initial_state()
        self.client_states: dict[int, Vectors] = {}
        self.messages: dict[int, Vectors] = {}
        self.moved_from: dict[int, Tensor] = {}
        self.moved_since: dict[int, int] = {}
        if self._holds_models and (first := self.message_now(0)):
            self.messages = {i: first if i == 0 else self.message_now(i) for i in range(m)}
        # How many clients there were when the job began, and who has left since.
        self.first_clients = m
        self.left: list[int] = []
        # The models of clients that train on until their next contact, for the view ``mean``.
        self._ahead: dict[int, Tensor] = {}
        # What these clients keep by then.
        self._ahead_states: dict[int, Vectors] = {}

    @property
    def _holds_models(self) -> bool:
        """Whether clients may hold other models than the server's newest."""
        return self.algorithm.client_models or self.lossy_downlink

    def start_model(self, client: int) -> Tensor:
        """The model that the client's next segment starts from."""
        return self.held[client] if self._holds_models else self.model

    @property
    def model(self) -> Tensor:
        """The server's newest model, with its statistics: the same object until it changes."""
        x, statistics = self._shared.of(self.algorithm.x), self.statistics
        if self._model[0] is not x or self._model[1] is not statistics:
            self._model = x, statistics, joined(x, statistics)
        return self._model[2]

    def message(self, client: int) -> Vectors:
        """The vectors that came, or come, with that model."""
        if self._holds_models:
            return self.messages.get(client, {})
        return self.message_now(client)

    def message_now(self, client: int) -> Vectors:
        """What the algorithm sends along now."""
        return self._shared.all_of(self.algorithm.message(client))

    def client_state(self, client: int) -> Vectors:
        """What the client keeps; only in a simulation."""
        return self.client_states.get(client, self._initial_state)

    def initial_state(self) -> Vectors:
        """What a client keeps before its first counted upload."""
        x0 = parameters_of(self.x0, len(self.statistics))
        return initial_state(self.rule, x0, self.kept_layers)

    def client_models(self) -> list[Tensor]:
        """The model of each of the members after the last round, once all are synchronised."""
        return [self._ahead.get(i, self.held[i]) for i in self.members()]

    def newest_state(self, client: int) -> Vectors:
        """What the client keeps together with its model in :meth:`client_models`."""
        return self._ahead_states.get(client) or self.client_state(client)

    def members(self) -> Sequence[int]:
        """The clients that have not left."""
        if not self.left:
            return range(self.algorithm.clients)
        gone = set(self.left)
        return [i for i in range(self.algorithm.clients) if i not in gone]

    def _keys(self, key: Callable[[int, int], int]) -> Collection[int]:
        """Under which numbers the members' reports, or differences, are kept."""
        members, first = self.members(), self.first_clients
        if isinstance(members, range) and len(members) == first:
            return range(key(0, first), key(0, first) + first)
        return {key(i, first) for i in members}

    def segment(self, client: int, last: int) -> Segment:
        """The client's local work up to round ``last``."""
        algorithm = self.algorithm
        everyone = algorithm.everyone_trains
        first = self._first_round(client, last)
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
            statistics=len(self.statistics),
        )

    def _first_round(self, client: int, last: int) -> int:
        """The first round of the client's local work up to round ``last``."""
        algorithm = self.algorithm
        keeps_training = algorithm.everyone_trains and algorithm.client_models
        return int(self.since[client]) if keeps_training else last

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
        given = self.algorithm.select(round)
        selected = given.tolist() if hasattr(given, "tolist") else given
        # Of a mask, True and False would pass for the clients 1 and 0.
        is_numbers = isinstance(selected, list) and all(
            isinstance(i, int | np.integer) and not isinstance(i, bool) for i in selected
        )
        if not is_numbers or not set(selected) <= set(round.active.tolist()):
            expected = "a part of A^t: an array or a list of clients"
            raise InputError(f"{self.algorithm.name}'s selection", selected, expected)
        if len(set(selected)) < len(selected):
            raise InputError(f"{self.algorithm.name}'s selection", selected, "each client once")
        return sorted(map(int, selected))

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
        algorithm, t, statistics = self.algorithm, round.number, self.statistics
        # In-place changes do not reach these copies, except of tensors, which are checked.
        before, x = snapshot(algorithm.state()), self._shared.of(algorithm.x)
        versions = Versions({name: value for name, value in before.items() if name != "_x"})
        uploads = UpdateStream(
            algorithm,
            round,
            {client: self._start(client, t) for client in selected},
            trained,
            hears,
            self.last_reports if "reported" in self.views else None,
            corrects="corrected" in self.views,
            report_key=lambda client: report_key(client, self.first_clients),
        )
        # Each upload answers one request, which brought the model that the client started from.
        sent = 0 if self.lossy_downlink else sum(map(self._request_bytes, selected))
        try:
            with one_thread():
                with naming_empty_rounds(algorithm.name, round, selected):
                    algorithm.aggregate(round, uploads if algorithm.one_pass else list(uploads))
                uploads.exhaust()
                self._shared.begin_period()
                versions.check(algorithm.name)
                self._check_model(t)
                if uploads.statistics:
                    self.statistics = algorithm.aggregation.mean_of(uploads.statistics)
                if not all_finite(self.model):
                    if not selected and self.model.isnan().any():
                        raise nobody_got_through(algorithm.name, round, "its x is not a number")
                    raise DivergedError(client=None, round=t)
                averaged = self._next_average(round)
                for i, report in uploads.reports.items():
                    difference = (report.double() - averaged).to(report.dtype)
                    self.last_reports.put(difference_key(i, self.first_clients), difference)
            others = {i: trained(i) for i in synchronised if i not in uploads.clients}
        except BaseException:  # Also Ctrl-C: a checkpoint of the round before is written then.
            algorithm.restore(before)
            if not algorithm.x.equal(x):
                algorithm.x = x.clone()
            self.statistics = statistics
            self.last_reports.discard()
            versions.check(algorithm.name)
            raise
        # A checkpoint after Ctrl-C must find all of the round, or nothing of it.
        with held_back():
            self.averaged = averaged
            if self.bytes_down is not None:
                self.bytes_down += sent
            self._commit(
                round, uploads, hears, {i: each.upload["model"] for i, each in others.items()}
            )
            self._ahead_states = {i: others[i].state for i in self._ahead}

    def _start(self, client: int, last: int) -> Start:
        """Where the client's work up to round ``last`` began."""
        model, statistics = self.start_model(client), len(self.statistics)
        if client in self.moved_from:
            rounds = last - self.moved_since[client] + 1
            return Start(model, self.moved_from[client], rounds, statistics)
        return Start(model, model, last - self._first_round(client, last) + 1, statistics)

    def _request_bytes(self, client: int) -> int:
        return self.start_model(client).nbytes + size_of(self.message(client))

    def _check_model(self, t: int) -> None:
        """Raise InputError unless the algorithm's model is of the same kind as before round 0."""
        first = parameters_of(self.x0, len(self.statistics))
        actual, expected = _described(self.algorithm.x), _described(first)
        if actual != expected:
            raise InputError(
                f"{self.algorithm.name} failed in round {t + 1}: its x is {actual}, but should be "
                f"{expected}"
            )

    def _next_average(self, round: Round) -> Tensor:
        """The moving average after the round."""
        if not len(round.active):
            return self.averaged
        # In place: of a large model, each vector in between costs as much as the arithmetic.
        moved = self.model.double() - self.averaged
        moved *= AVERAGED_WEIGHT
        moved += self.averaged
        return moved

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
        trainers = algorithm.members if algorithm.everyone_trains else len(uploads)
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
        algorithm, x = self.algorithm, self.model
        self.batches[list(uploads.clients)] += round.local_steps
        self._ahead = {}
        if not self._holds_models:
            return
        for i in uploads.clients:
            self.held[i] = uploads.unanswered.get(i, x)
            self.since[i] = round.number + 1
            self.moved_from.pop(i, None)
            self.moved_since.pop(i, None)
        for i, model in others.items():
            if not algorithm.everyone_trains:
                self.since[i] = round.number + 1
            elif self.rule is None and not self._initial_state:
                if algorithm.aggregation.clip:
                    # Its update is clipped as a whole, wherever evaluations cut its work in two.
                    self.moved_from.setdefault(i, self.held[i])
                    self.moved_since.setdefault(i, int(self.since[i]))
                self.held[i], self.since[i] = model, round.number + 1
            else:
                # Its work is one piece from contact to contact: it is not cut in two here.
                self._ahead[i] = model
        if hears is not None and not algorithm.client_models:
            # The server's model goes out to everyone who hears it, whether or not they reported.
            receivers = np.flatnonzero(hears).tolist()
            self.held.put(np.flatnonzero(hears), x)
        else:
            receivers = [i for i in uploads.clients if i not in uploads.unanswered]
        for i in receivers:
            if message := self.message_now(i):
                self.messages[i] = message
            if self.lossy_downlink and self.bytes_down is not None:
                self.bytes_down += x.nbytes + size_of(message)

    def view_models(self) -> dict[str, Tensor]:
        """The model of each view; ``mean`` is exact only while all clients are synchronised."""
        x = self.model
        models: dict[str, Callable[[], Tensor]] = {
            # Copies: whoever evaluates them may change them in place.
            "server": lambda: x.clone(),
            "averaged": lambda: self.averaged.to(x.dtype, copy=True),
            "mean": lambda: mean(self.client_models()),
            "reported": self._reported,
            "corrected": self._corrected,
        }
        with one_thread():
            return {view: models[view]() for view in self.views}

    def _reported(self) -> Tensor:
        """The mean of the clients' last reports."""
        keys = self._keys(report_key)
        if not self.last_reports.count(keys):
            return self.x0.clone()
        return self.algorithm.mean_of(each for _, each in self.last_reports.items(keys))

    def stored_reports(self, view: str) -> int:
        """How many vectors of clients a view needs."""
        keys = {"reported": report_key, "corrected": difference_key}
        return self.last_reports.count(self._keys(keys[view])) if view in keys else 0

    def _corrected(self) -> Tensor:
        """The moving average, plus the mean of the clients' last differences to it."""
        keys = self._keys(difference_key)
        if not self.last_reports.count(keys):
            # Nobody has reported yet, or only to an earlier version, which kept no differences.
            return self.averaged.to(self.x0.dtype, copy=True)
        differences = (each.double() for _, each in self.last_reports.items(keys))
        model = self.averaged + self.algorithm.mean_of(differences)
        if n := len(self.statistics):
            # Not corrected: a variance plus a difference may be below zero.
            model[-n:] = self.averaged[-n:]
        return model.to(self.x0.dtype)

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to continue to the same bits."""
        # Of clients that all hold the server's model nothing is to be kept.
        skipped = () if self._holds_models else ("held", "since")
        return {
            **{name: getattr(self, name) for name in STATE if name not in skipped},
            **({"held": self.held.state()} if self._holds_models else {}),
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
        if "held" in state:
            self.held = HeldModels.restored(state["held"])
        self._initial_state = self.initial_state()


STATE = (
    "round",
    "contacts",
    "uploads",
    "local_steps",
    "x0",
    "statistics",
    "kept_layers",
    "averaged",
    "held",
    "since",
    "batches",
    "last_contact",
    "last_upload",
    "messages",
    "client_states",
    "first_clients",
    "left",
    "moved_from",
    "moved_since",
    "bytes_up",
    "bytes_down",
)


@contextmanager
def naming_empty_rounds(algorithm: str, round: Round, selected: Sequence[int]) -> Iterator[None]:
    """Tell of a failure in a round without updates that there were none."""
    try:
        yield
    except (DivergedError, OSError, MemoryError):
        raise
    except Exception as error:
        if selected:
            raise
        reason = explained(error) or one_line(error)
        raise nobody_got_through(algorithm, round, reason) from error


def nobody_got_through(algorithm: str, round: Round, reason: str) -> InputError:
    """An algorithm forgot that there may be no updates."""
    return InputError(
        f"{algorithm} failed in round {round.number + 1}: nobody got through in this round "
        f"({reason}); begin aggregate() with: if not updates: return"
    )


def _described(model: object) -> str:
    """What kind of vector a model is."""
    if not isinstance(model, Tensor):
        return f"of type {type(model).__name__}"
    kind = str(model.dtype).removeprefix("torch.")
    layout = "" if model.layout == torch.strided else " and sparse"
    return f"{kind} of shape {tuple(model.shape)} on {model.device}{layout}"
