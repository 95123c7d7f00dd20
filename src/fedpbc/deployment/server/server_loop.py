"""The server's round loop: one request per client, until the deadline or until all replied.

It is independent of Flower: a :class:`Transport` sends messages and collects replies.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

from fedpbc.aggregation import Aggregation
from fedpbc.algorithms.algorithm import Algorithm
from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainRequest, sanitized
from fedpbc.deployment.protocol.tensors import checksum, initial_checksum, to_vector, to_vectors
from fedpbc.deployment.server.departures import Departures
from fedpbc.deployment.server.identities import Identities
from fedpbc.deployment.server.job_options import aggregation_options, algorithm_options
from fedpbc.deployment.server.node_registry import NodeRegistry
from fedpbc.deployment.server.round_state import RoundState
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.transport import ONLINE_SECONDS, Reply, Transport
from fedpbc.deployment.server.upload_check import UploadCheck
from fedpbc.deployment.settings import FleetSection
from fedpbc.errors import FedpbcError, InputError, one_line
from fedpbc.simulation.membership import join, leave
from fedpbc.simulation.model_parts import ModelParts
from fedpbc.simulation.norm_bound import NormBound, close_bounded_round
from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.views import DEPLOYABLE
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.text import printable

__all__ = ["NotServedError", "Server"]

LOG = logging.getLogger("fedpbc.deployment")
POLL_SECONDS = 0.25
LEAST_SECONDS = 2.0
"""Nothing is sent with less time left: a message could expire before it is on its way."""
LINKS_EVERY = 100
"""Rounds between writing the link log, which grows with the job; the end also writes it."""
REFUSED_ROUNDS, REFUSED_SECONDS = 5, 60.0
"""A job ends if everyone refuses in so many rounds in a row, and for at least so long."""


class NotServedError(FedpbcError):
    """No client can do what the job asks for: somebody must see to it."""


class Server:
    """Runs a job to its end, from the last checkpoint in its folder."""

    def __init__(
        self,
        algorithm: Algorithm,
        training: LocalTraining,
        folder: ServerDirectory,
        transport: Transport,
        *,
        rounds: int,
        layout: Layout,
        client_settings: str,
        fleet: FleetSection,
        parts: ModelParts | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up a job, or resume the one in this folder.

        The algorithm is fresh from its constructor; ``client_settings`` is sent with every request;
        ``parts`` has what the initial model has besides; ``now`` and ``sleep`` are in seconds.
        """
        self.folder, self.transport = folder, transport
        self.state = ServerState(
            algorithm, training, views=DEPLOYABLE, last_reports=folder.reports, parts=parts
        )
        # What stays on the devices is not known here.
        self.rounds, self.layout, self.fleet = rounds, layout.without_kept(), fleet
        self.client_settings = client_settings
        self._uploads = UploadCheck(algorithm, parts)
        self._norms = NormBound(fleet.norm_factor, fleet.norm_bound)
        self._now, self._sleep = now, sleep
        # Without keys, Flower assigns a node another number whenever it starts.
        keyless = folder.has_nodes and folder.pinned() is None
        self.nodes = NodeRegistry(algorithm.clients, rebind=keyless)
        self.job = uuid4().hex
        # Before a checkpoint restores the options that the job started with.
        self._options = algorithm_options(algorithm)
        self._hellos: dict[str, int] = {}
        self._hello_at: dict[int, float] = {}
        self._previous: RoundState | None = None
        self._logged: set[str] = set()
        self._seconds = 0.0
        # The last round in which what a client uploaded was refused.
        self._start_over: dict[int, int] = {}
        # The first of the rounds in a row in which everyone refused, and when it began.
        self._unserved: tuple[int, float] | None = None
        self._last_refusal = "nobody refused"
        self._resume()
        self._identities = Identities(folder.path, self.job)
        self._departures = Departures(folder.path)
        self.nodes.clients = algorithm.clients
        # Of the model that the job started with, which a checkpoint has.
        self._initial = initial_checksum(self.state.initial_state())
        # The job's clock: it stands still while no server runs.
        self._began = now() - self._seconds
        self._started = now()

    def _resume(self) -> None:
        state = self.folder.load(self.state)
        if state is None:
            self._save()
            return
        # Older checkpoints have no options; restoring one has set them in the algorithm.
        options = state.get("options", algorithm_options(self.state.algorithm))
        options = {**aggregation_options(Aggregation()), **options}
        current = {"settings": self.client_settings, **self._options}
        for option, before in {"settings": state["sent"], **options}.items():
            if (now := current.get(option)) != before:
                raise InputError(
                    f"{option} is {now}, but the job in {self.folder.path} started with {before}"
                )
        if (started := len(self.state.model)) != self.layout.dimension:
            raise InputError(
                f"model() has {self.layout.dimension:,} parameters, "
                f"but the job in {self.folder.path} started with {started:,}"
            )
        self.job, self._seconds = state["job"], state["seconds"]
        self.nodes.client_of = dict(state["nodes"])
        self._norms.restore(state.get("norms", {}))
        self._start_over = dict(state["start_over"])
        for node, client in self.nodes.client_of.items():
            self.folder.record_node(client, node)
        LOG.info("job %s resumes with round %d", self.job[:8], self.state.round)

    def _save(self) -> None:
        self.folder.save(
            self.state,
            {
                "job": self.job,
                "algorithm": self.state.algorithm.name,
                "sent": self.client_settings,
                "options": self._options,
                "nodes": self.nodes.client_of,
                "norms": self._norms.state(),
                "start_over": self._start_over,
                "seconds": self._seconds,
            },
        )

    def run(self) -> None:
        """Run all remaining rounds."""
        if self.state.round == 0:
            self._wait_for_clients()
        while self.state.round < self.rounds:
            self.one_round()
        if self.rounds and not self.state.contacts:
            raise NotServedError(
                f"no answer counted in any of the {self.rounds} rounds ({self._last_refusal}): "
                "the models are those of the start; raise 'rounds' in fleet.toml to go on"
            )
        self._write_results(final=True)
        self.folder.finish({"job": self.job, "rounds": self.state.round})
        LOG.info("job %s is finished: %d rounds", self.job[:8], self.state.round)

    def _wait_for_clients(self) -> None:
        while len(self.nodes.client_of) < self.fleet.wait_for:
            self._identify_nodes()
            self._collect(None)
            self._sleep(POLL_SECONDS)
        self._began = self._now()

    def one_round(self) -> None:
        """Send requests, wait for replies, aggregate, and save."""
        server = self.state
        number, began = server.round, self._now()
        joined, departed = self._update_members()
        current = RoundState(self.job, number, self._uploads, self._identities)
        while True:
            self._identify_nodes()
            self._send_requests(current, began)
            self._collect(current)
            left = began + self.fleet.round_seconds - self._now()
            if left <= 0 or current.is_over(self._awaited()):
                break
            self._sleep(min(POLL_SECONDS, left))
        active, selected, refused = close_bounded_round(server, current.uploads, self._norms)
        self._log_refused(refused)
        self._start_over |= dict.fromkeys(current.bad_uploads | refused.keys(), number)
        if not active:
            # Refused answers alone do not make a round shorter.
            self._sleep(max(0.0, began + self.fleet.round_seconds - self._now()))
        self._previous = current
        self._seconds = self._now() - self._began
        self.folder.add_line(
            {
                "round": number,
                "began_s": began - self._began,
                "ended_s": self._seconds,
                "at": round(time.time(), 3),
                "everyone": server.algorithm.everyone_trains,
                "active": active,
                "selected": selected,
                "checksums": {i: checksum(each) for i, each in sorted(current.uploads.items())},
                "bytes_up": current.bytes_up,
                "bytes_down": current.bytes_down,
                "refused": sorted(current.rejected.keys() | refused.keys()),
                "joined": joined,
                "left": departed,
                "changed": self._identities.changed(),
                "known": sorted(self.nodes.client_of.values()),
            }
        )
        # Before anything of the next round is sent.
        self._save()
        LOG.info("round %d: %d of %d", number, len(active), len(self.nodes.client_of))
        self._write_results(final=False)
        self._check_served(number, began, active, {**current.rejected, **refused})

    def _check_served(
        self, number: int, began: float, active: list[int], reasons: Mapping[int, str]
    ) -> None:
        """Raise a NotServedError if for a while everyone who was heard from has refused."""
        if reasons:
            client, reason = min(reasons.items())
            self._last_refusal = f"client {client}: {printable(reason, 110)}"
        if active or not reasons or not self._online() <= reasons.keys():
            self._unserved = None
            return
        first, since = self._unserved = self._unserved or (number, began)
        seconds = self._now() - since
        if number - first + 1 >= REFUSED_ROUNDS and seconds >= REFUSED_SECONDS:
            raise NotServedError(
                f"in rounds {first} to {number} all clients that were heard from were refused "
                f"({len(reasons)}); {self._last_refusal}"
            )

    def _online(self) -> set[int]:
        """The clients that were heard of lately."""
        online = set(self.transport.nodes())
        return {client for node, client in self.nodes.client_of.items() if node in online}

    def _awaited(self) -> set[int]:
        """The clients that a round waits for: not who has been away for a while."""
        if self._now() - self._started < ONLINE_SECONDS:
            # They need a moment to find a server that has just been started.
            return set(self.nodes.client_of.values())
        return self._online()

    def _update_members(self) -> tuple[list[int], list[int]]:
        """Take the clients whose keys are new, and let go who is to leave: before a round."""
        server, pinned = self.state, set((self.folder.pinned() or {}).values())
        joined, left = [], []
        while self.fleet.app is not None and server.algorithm.clients in pinned:
            try:
                joined.append(join(server))
            except InputError as error:
                self._log_once(f"client {server.algorithm.clients} cannot join: {error}")
                break
            LOG.info("client %d joins", joined[-1])
        for client in self._departures.clients():
            if client in server.left:
                continue
            try:
                leave(server, client)
            except InputError as error:
                self._log_once(f"client {client} cannot leave: {error}")
                continue
            left.append(client)
            LOG.info("client %d leaves", client)
        self.nodes.clients = server.algorithm.clients
        nodes = self.nodes.client_of.items()
        self.nodes.client_of = {node: i for node, i in nodes if i not in server.left}
        return joined, left

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            LOG.warning("%s", line)

    def _log_refused(self, refused: Mapping[int, str]) -> None:
        """Log whose uploads were not counted although they were complete."""
        node_of = {client: node for node, client in self.nodes.client_of.items()}
        for client, reason in refused.items():
            LOG.warning("rejected node %s (client %d): %s", node_of.get(client), client, reason)

    def _write_results(self, final: bool) -> None:
        rounds = self.state.round
        if final or rounds % self.fleet.views_every == 0:
            self.folder.save_models(self.state.view_models(), self.layout, rounds)
        if final or rounds % LINKS_EVERY == 0:
            self.folder.save_links(self.nodes.clients, self.fleet.round_seconds)

    def _identify_nodes(self) -> None:
        """Identify nodes by their keys. Without keys, ask them; again if a hello expires."""
        pinned = self.folder.pinned()
        if pinned is not None:
            # Who has left, or is to join with the next round, is not asked.
            gone, m = self.state.left, self.nodes.clients
            pinned = {node: i for node, i in pinned.items() if i < m and i not in gone}
            for node in self.nodes.pin(pinned, self.transport.nodes()):
                self._record_node(node)
            return
        for node in self.transport.nodes():
            waited = self._now() - self._hello_at.get(node, -float("inf"))
            if node in self.nodes.client_of or waited < self.fleet.round_seconds:
                continue
            # Its last hello has expired.
            self._hellos = {m: n for m, n in self._hellos.items() if n != node}
            hello = Payload({"kind": "hello", "job": self.job})
            message = self._send(node, hello, self.fleet.round_seconds)
            self._hello_at[node] = self._now()
            if message is not None:
                self._hellos[message] = node

    def _record_node(self, node: int) -> None:
        client = self.nodes.client_of[node]
        self.folder.record_node(client, node)
        LOG.info("node %d is client %d", node, client)

    def _send_requests(self, current: RoundState, began: float) -> None:
        """Send this round's request to every client; to an offline one, when it is back."""
        requested, online = current.requested, set(self.transport.nodes())
        for node, client in sorted(self.nodes.client_of.items(), key=lambda pair: pair[1]):
            left = began + self.fleet.round_seconds - self._now()
            # Half of a round that is as short as that.
            if left < min(LEAST_SECONDS, self.fleet.round_seconds / 2):
                return
            if client in requested or node not in online:
                continue
            request = self._request(client, began).pack()
            message = self._send(node, request, left)
            if message is not None:
                current.add_request(message, node, client)
                current.bytes_down += request.vector_bytes

    def _send(self, node: int, payload: Payload, seconds: float) -> str | None:
        """Send a message; a failure concerns this node alone, and it is sent again."""
        try:
            return self.transport.send(node, payload, seconds)
        except Exception as error:
            # Whatever a transport raises: the other nodes get their messages.
            LOG.warning("cannot send to node %d: %s", node, sanitized(one_line(error)))
            return None

    def _request(self, client: int, began: float) -> TrainRequest:
        segment = self.state.segment(client, self.state.round)
        return TrainRequest(
            job=self.job,
            round=self.state.round,
            client=client,
            first_round=segment.first_round,
            rounds=segment.rounds,
            first_batch=segment.first_batch,
            scale=segment.scale,
            everyone=self.state.algorithm.everyone_trains,
            settings=self._settings_for(client),
            round_seconds=self.fleet.round_seconds,
            age=self._now() - began,
            job_rounds=self.rounds,
            counted=int(self.state.last_upload[client]),
            start_over=self._start_over.get(client, -1),
            initial=self._initial,
            start=to_vector(segment.start),
            received=to_vectors(segment.received),
        )

    def _settings_for(self, client: int) -> str:
        """How to train; who joined later is told of a number of clients that includes it."""
        if client < self.state.first_clients:
            return self.client_settings
        settings = {**json.loads(self.client_settings), "clients": client + 1}
        return json.dumps(settings, sort_keys=True)

    def _collect(self, current: RoundState | None) -> None:
        pending = [*self._hellos, *(current.pending if current else ())]
        # Late replies of the previous round are collected to be logged.
        pending += self._previous.pending if self._previous else []
        for reply in self.transport.collect(pending):
            if current is not None and reply.payload is not None:
                current.bytes_up += reply.payload.vector_bytes
            if reply.lost:
                if current is not None:
                    current.remove_request(reply.message)
                self._hellos.pop(reply.message, None)
                continue
            if reply.message in self._hellos:
                self._bind(reply)
                continue
            if reply.payload is None:
                error = reply.error or "empty reply"
                reason: str | None = error
                if current is not None:
                    current.reject(reply.message, error)
            elif current is None:
                reason = "replies to no request of a current round"
            else:
                reason = current.add_reply(reply.message, reply.node, reply.payload)
            if self._previous is not None:
                self._previous.reject(reply.message, reason or "late")
            if reason is not None:
                client = self.nodes.client_of.get(reply.node)
                who = "unknown" if client is None else f"client {client}"
                LOG.warning("rejected node %d (%s): %s", reply.node, who, sanitized(reason))
        self.folder.save_nodes()
        self._identities.save()

    def _bind(self, reply: Reply) -> None:
        """Bind a node to the client that it claims to be."""
        del self._hellos[reply.message]
        try:
            if reply.payload is None:
                raise MessageError(reply.error)
            if reply.payload.kind == "refusal":
                raise MessageError(reply.payload.text("reason"))
            reason = self.nodes.bind(reply.node, reply.payload.integer("client"))
        except MessageError as error:
            reason = str(error)
        if reason is None and self.nodes.client_of[reply.node] in self.state.left:
            reason = f"client {self.nodes.client_of.pop(reply.node)} has left"
        if reason is None:
            self._record_node(reply.node)
        else:
            LOG.warning("rejected node %d: %s", reply.node, sanitized(reason))
