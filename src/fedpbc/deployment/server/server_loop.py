"""The server's loop: one message a round and node, until the deadline or until all answered.

It knows nothing of Flower: a :class:`Transport` brings messages out and answers in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4
from zlib import crc32

from torch import Tensor

from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainRequest, Vector, folded
from fedpbc.deployment.server.directory import ServerDirectory
from fedpbc.deployment.server.ledger import Ledger, options_in
from fedpbc.deployment.server.round_state import Nodes, RoundState
from fedpbc.deployment.settings import FleetSection
from fedpbc.errors import InputError, Verbatim
from fedpbc.tasks.layout import Layout

__all__ = ["Reply", "Server", "Transport"]

LOG = logging.getLogger("fedpbc.deployment")
POLL_SECONDS = 0.25
LINKS_EVERY = 100
"""Rounds between writing the link log, which grows; it is also written at the end."""


@dataclass(frozen=True, eq=False)
class Reply:
    """What came back for a message: a parcel, or the reason why there is none.

    ``lost``: it never arrived, as far as anybody knows, and may be sent again.
    """

    message: str
    node: int
    parcel: Payload | None
    error: str = ""
    lost: bool = False


class Transport(Protocol):
    """What carries messages."""

    def nodes(self) -> Iterable[int]:
        """The nodes that can be reached at the moment, as far as is known."""

    def send(self, node: int, parcel: Payload, seconds: float) -> str | None:
        """Send a message that lives so long; gives its name, or None if it cannot be sent."""

    def collect(self, messages: Sequence[str]) -> list[Reply]:
        """What came back for these messages since the last time."""


class Server:
    """Runs a job to its end, from wherever its folder says it was."""

    def __init__(
        self,
        ledger: Ledger,
        folder: ServerDirectory,
        post: Transport,
        *,
        rounds: int,
        layout: Layout,
        sent: str,
        fleet: FleetSection,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up a job, or take up one that was interrupted.

        Args:
            ledger: at its beginning.
            folder: open; holds everything that outlasts this process.
            post: what carries messages.
            rounds: T.
            layout: the names and shapes of the model's parameters.
            sent: how clients train, for every message.
            fleet: deadline and the like.
            now: seconds on some clock.
            sleep: waits.
        """
        self.ledger, self.folder, self.post = ledger, folder, post
        self.rounds, self.layout, self.sent, self.fleet = rounds, layout, sent, fleet
        self._now, self._sleep = now, sleep
        # Flower gives a node without a key another number every time it starts.
        keyless = folder.has_nodes and folder.pinned() is None
        self.nodes = Nodes(ledger.algorithm.clients, rebind=keyless)
        self.job = uuid4().hex
        # Before a checkpoint puts those in their places that the job was begun with.
        self._options = options_in(ledger.algorithm)
        self._greeted: dict[str, int] = {}
        self._greeted_at: dict[int, float] = {}
        self._last: RoundState | None = None
        self._seconds = 0.0
        self._take_up()
        # The job's own clock: time in which no server ran is nobody's outage.
        self._began = now() - self._seconds

    def _take_up(self) -> None:
        state = self.folder.load(self.ledger)
        if state is None:
            self._save()
            return
        name = self.ledger.algorithm.name
        # Older checkpoints do not say; they have put the options themselves in their places.
        begun_with = state.get("options", options_in(self.ledger.algorithm))
        for what, was, is_now in (
            ("algorithm", state["algorithm"], name),
            ("settings", state["sent"], self.sent),
            *((k, was, self._options.get(k)) for k, was in begun_with.items()),
        ):
            if was != is_now:
                right = f"what the job in {self.folder.path} was begun with: {was}"
                raise InputError(what, Verbatim(is_now), right)
        if len(self.ledger.algorithm.x) != self.layout.dimension:
            right = f"the {len(self.ledger.algorithm.x):,} that the job was begun with"
            raise InputError("model()", Verbatim(f"of {self.layout.dimension:,} parameters"), right)
        self.job, self._seconds = state["job"], state["seconds"]
        self.nodes.client_of = dict(state["nodes"])
        for node, client in self.nodes.client_of.items():
            self.folder.hear(client, node)
        LOG.info("job %s goes on with round %d", self.job[:8], self.ledger.round)

    def _save(self) -> None:
        self.folder.save(
            self.ledger,
            {
                "job": self.job,
                "algorithm": self.ledger.algorithm.name,
                "sent": self.sent,
                "options": self._options,
                "nodes": self.nodes.client_of,
                "seconds": self._seconds,
            },
        )

    def run(self) -> None:
        """All rounds that are left."""
        if self.ledger.round == 0:
            self._wait_for_clients()
        while self.ledger.round < self.rounds:
            self.one_round()
        self._write(final=True)
        self.folder.finish({"job": self.job, "rounds": self.ledger.round})
        LOG.info("job %s is done: %d rounds", self.job[:8], self.ledger.round)

    def _wait_for_clients(self) -> None:
        while len(self.nodes.client_of) < self.fleet.wait_for:
            self._greet()
            self._collect(None)
            self._sleep(POLL_SECONDS)
        self._began = self._now()

    def one_round(self) -> None:
        """Ask, wait, close, and keep."""
        ledger, x = self.ledger, self.ledger.algorithm.x
        number, began = ledger.round, self._now()
        dtype = str(x.dtype).removeprefix("torch.")
        under_way = RoundState(self.job, number, dtype=dtype, dimension=len(x))
        while True:
            self._greet()
            self._ask(under_way, began)
            self._collect(under_way)
            left = began + self.fleet.round_seconds - self._now()
            if left <= 0 or under_way.is_over(self.nodes.client_of.values()):
                break
            self._sleep(min(POLL_SECONDS, left))
        closed = ledger.close(under_way.answers)
        self._last = under_way
        self._seconds = self._now() - self._began
        self.folder.add_line(
            {
                "round": number,
                "began_s": began - self._began,
                "ended_s": self._seconds,
                "at": round(time.time(), 3),
                "everyone": ledger.algorithm.everyone_trains,
                "active": closed.active,
                "selected": closed.selected,
                "checksums": {i: checksum(end) for i, end in sorted(under_way.answers.items())},
                "refused": sorted(under_way.refused),
                "known": sorted(self.nodes.client_of.values()),
            }
        )
        # Before anybody can be sent anything of the next round.
        self._save()
        LOG.info("round %d: %d of %d", number, len(closed.active), len(self.nodes.client_of))
        self._write(final=False)

    def _write(self, final: bool) -> None:
        rounds = self.ledger.round
        if final or rounds % self.fleet.views_every == 0:
            self.folder.save_models(self.ledger.view_models(), self.layout, rounds)
        if final or rounds % LINKS_EVERY == 0:
            self.folder.save_links(self.nodes.clients, self.fleet.round_seconds)

    def _greet(self) -> None:
        """Know nodes by their keys. Without keys, ask who they are; again after a while."""
        pinned = self.folder.pinned()
        if pinned is not None:
            for node in self.nodes.pin(pinned, self.post.nodes()):
                self.folder.hear(pinned[node], node)
                LOG.info("node %d is client %d", node, pinned[node])
            return
        for node in self.post.nodes():
            waited = self._now() - self._greeted_at.get(node, -float("inf"))
            if node in self.nodes.client_of or waited < self.fleet.round_seconds:
                continue
            # Its last greeting has expired.
            self._greeted = {m: n for m, n in self._greeted.items() if n != node}
            hello = Payload({"kind": "hello", "job": self.job})
            message = self.post.send(node, hello, self.fleet.round_seconds)
            self._greeted_at[node] = self._now()
            if message is not None:
                self._greeted[message] = node

    def _ask(self, under_way: RoundState, began: float) -> None:
        """Send this round's work to every known client; to one that is away, when it is back."""
        asked, online = under_way.asked, set(self.post.nodes())
        for node, client in sorted(self.nodes.client_of.items(), key=lambda pair: pair[1]):
            left = began + self.fleet.round_seconds - self._now()
            if client in asked or node not in online or left <= 0:
                continue
            message = self.post.send(node, self._work(client, began).pack(), left)
            if message is not None:
                under_way.ask(message, node, client)

    def _work(self, client: int, began: float) -> TrainRequest:
        segment = self.ledger.work(client)
        correction = segment.correction
        return TrainRequest(
            job=self.job,
            round=self.ledger.round,
            client=client,
            first_round=segment.first_round,
            rounds=segment.rounds,
            first_batch=segment.first_batch,
            scale=segment.scale,
            everyone=self.ledger.algorithm.everyone_trains,
            settings=self.sent,
            round_seconds=self.fleet.round_seconds,
            age=self._now() - began,
            job_rounds=self.rounds,
            start=to_vector(segment.start),
            correction=None if correction is None else to_vector(correction),
        )

    def _collect(self, under_way: RoundState | None) -> None:
        wanted = [*self._greeted, *(under_way.messages if under_way else ())]
        # Those of the round before, too: that they are late is worth a line.
        wanted += self._last.messages if self._last else []
        for reply in self.post.collect(wanted):
            if reply.lost:
                if under_way is not None:
                    under_way.forget(reply.message)
                self._greeted.pop(reply.message, None)
                continue
            if reply.message in self._greeted:
                self._meet(reply)
                continue
            if reply.parcel is None:
                reason: str | None = reply.error or "it gave no answer"
                if under_way is not None:
                    under_way.give_up(reply.message)
            elif under_way is None:
                reason = "it answers no message of a round under way"
            else:
                reason = under_way.take(reply.message, reply.node, reply.parcel)
            if self._last is not None:
                self._last.give_up(reply.message)
            if reason is not None:
                client = self.nodes.client_of.get(reply.node)
                who = "unknown" if client is None else f"client {client}"
                LOG.warning("node %d (%s) is refused: %s", reply.node, who, folded(reason))
        self.folder.save_heard()

    def _meet(self, reply: Reply) -> None:
        """A node says who it is."""
        del self._greeted[reply.message]
        try:
            if reply.parcel is None:
                raise MessageError(reply.error)
            if reply.parcel.kind == "refusal":
                raise MessageError(reply.parcel.text("reason"))
            reason = self.nodes.bind(reply.node, reply.parcel.whole("client"))
        except MessageError as error:
            reason = str(error)
        if reason is not None:
            LOG.warning("node %d is refused: %s", reply.node, folded(reason))
        else:
            client = self.nodes.client_of[reply.node]
            self.folder.hear(client, reply.node)
            LOG.info("node %d is client %d", reply.node, client)


def to_vector(model: Tensor) -> Vector:
    """A model as it travels."""
    return Vector.of(model.detach().cpu().numpy())


def checksum(model: Tensor) -> str:
    """Tells one model from another in logs.

    Example:
        >>> import torch
        >>> checksum(torch.zeros(2))
        '6522df69'
    """
    return f"{crc32(to_vector(model).data):08x}"
