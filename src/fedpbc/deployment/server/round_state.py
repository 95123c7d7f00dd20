"""One round at the server: who was sent a request, whose reply counts, and why another does not."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply
from fedpbc.deployment.server.identities import Identities, Identity
from fedpbc.deployment.server.upload_check import UploadCheck

__all__ = ["RoundState"]


class RoundState:
    """The requests and replies of one round. Each client's reply counts once, or not at all."""

    def __init__(
        self, job: str, number: int, uploads: UploadCheck, identities: Identities | None = None
    ) -> None:
        """Begin round ``number``; replies must name this job and have such uploads."""
        self.job, self.number, self._check = job, number, uploads
        self._identities = identities
        self._requests: dict[str, tuple[int, int]] = {}
        self.uploads: dict[int, dict[str, Tensor]] = {}
        # Bytes of the vectors of all requests that were sent, and of all replies that arrived.
        self.bytes_down = self.bytes_up = 0
        # Clients whose reply was rejected, and why: the round does not wait for another.
        self.rejected: dict[int, str] = {}
        # Those of them whose upload was.
        self.bad_uploads: set[int] = set()

    def add_request(self, message: str, node: int, client: int) -> None:
        """Record a request that was sent."""
        self._requests[message] = node, client

    def remove_request(self, message: str) -> None:
        """Forget a request that was lost: it may be sent again."""
        self._requests.pop(message, None)

    def reject(self, message: str, reason: str) -> None:
        """Expect no valid reply to this request."""
        if message in self._requests and (client := self._requests[message][1]) not in self.uploads:
            self.rejected[client] = reason

    @property
    def pending(self) -> list[str]:
        """The requests without a reply."""
        done = self.uploads.keys() | self.rejected.keys()
        return [message for message, (_, client) in self._requests.items() if client not in done]

    @property
    def requested(self) -> set[int]:
        """The clients that were sent a request."""
        return {client for _, client in self._requests.values()}

    def is_over(self, clients: Collection[int]) -> bool:
        """Whether all these clients have replied, validly or not, and somebody validly."""
        replied = self.uploads.keys() | self.rejected.keys()
        return bool(self.uploads) and set(clients) <= replied

    def add_reply(self, message: str, node: int, payload: Payload) -> str | None:
        """Count a reply, or return the reason why it is ignored."""
        if message not in self._requests:
            return f"replies to no request of round {self.number}: late, or unsolicited"
        expected_node, client = self._requests[message]
        if node != expected_node:
            return f"replies for node {expected_node}"
        if client in self.uploads:
            return f"client {client} has already replied in round {self.number}"
        try:
            self.uploads[client] = self._checked_upload(client, payload)
        except MessageError as error:
            self.rejected[client] = str(error)
            return str(error)
        self.rejected.pop(client, None)
        self.bad_uploads.discard(client)
        return None

    def _checked_upload(self, client: int, payload: Payload) -> dict[str, Tensor]:
        reply = TrainReply.unpack(payload)
        if reply.job != self.job:
            raise MessageError(f"reply for another job, {reply.job[:50]!r}")
        if reply.round != self.number:
            raise MessageError(f"reply for round {reply.round}; this is round {self.number}")
        if reply.client != client:
            raise MessageError(f"replies as client {reply.client}, but is client {client}")
        try:
            upload = self._check.checked(reply.upload)
        except MessageError:
            self.bad_uploads.add(client)
            raise
        self._check_identity(reply)
        return upload

    def _check_identity(self, reply: TrainReply) -> None:
        try:
            identity = Identity.parsed(vars(reply))
        except ValueError as error:
            raise MessageError(str(error)) from None
        if self._identities is None:
            return
        if problem := self._identities.problem(reply.client, identity):
            raise MessageError(problem)
