"""Clients that join or leave while a job runs.

m is the number of clients that take part: it grows from the round in which one joins, and falls
from the round in which one leaves. Fleets and the simulator apply the same changes in the same
rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpbc.errors import InputError
from fedpbc.simulation.server_state import ServerState

__all__ = ["MembershipChange", "join", "leave"]


@dataclass(frozen=True)
class MembershipChange:
    """What changes before a round: how many clients join, of the next numbers, and who leaves."""

    joined: int = 0
    left: tuple[int, ...] = ()

    def apply(self, server: ServerState) -> list[int]:
        """Change a server's state; returns the clients that are new."""
        new = [join(server) for _ in range(self.joined)]
        for client in self.left:
            leave(server, client)
        return new


def join(server: ServerState) -> int:
    """Take one more client from the next round on; returns its number.

    It starts from the server's model, as if it had been synchronised in the round before.

    Example:
        >>> import torch
        >>> from fedpbc.algorithms import FedPBC, ServerInit
        >>> from fedpbc.tasks import LocalTraining
        >>> server = ServerState(FedPBC(ServerInit(torch.zeros(1), clients=2)), LocalTraining())
        >>> join(server), server.algorithm.members
        (2, 3)
        >>> leave(server, 0)
        >>> server.algorithm.clients, server.algorithm.members
        (3, 2)
    """
    check_can_change(server)
    algorithm, client = server.algorithm, server.algorithm.clients
    algorithm.join(server.round)
    server.held.append(server.model)
    server.since = np.append(server.since, np.int64(server.round))
    server.batches = np.append(server.batches, np.int64(0))
    server.last_contact = np.append(server.last_contact, np.int64(server.round - 1))
    server.last_upload = np.append(server.last_upload, np.int64(-1))
    if server.messages and (message := server.message_now(client)):
        server.messages[client] = message
    return client


def leave(server: ServerState, client: int) -> None:
    """Let a client go for good: it is no longer one of the m, nor in any view."""
    if not 0 <= client < server.algorithm.clients or client in server.left:
        raise InputError("client", client, "one that takes part")
    if server.algorithm.members == 1:
        raise InputError("client", client, "another one: it is the last")
    check_can_change(server)
    server.algorithm.leave(client)
    server.left = [*server.left, client]
    server.client_states.pop(client, None)
    server.messages.pop(client, None)


def check_can_change(server: ServerState) -> None:
    """Raise InputError if the algorithm's clients keep what the server has summed up."""
    if server.rule is not None and server.rule.keeps:
        raise InputError(
            f"clients of {server.algorithm.name} keep what the server has summed up: nobody can "
            "join or leave during a job"
        )
