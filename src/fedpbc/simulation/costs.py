"""What a run costs, counted from what is really kept and sent."""

from __future__ import annotations

from typing import Any

from fedpbc.simulation.server_state import ServerState
from fedpbc.simulation.shared_vectors import tensors_in
from fedpbc.simulation.views import DEPLOYABLE

__all__ = ["costs_of", "models_on_client", "models_on_server"]


def costs_of(server: ServerState) -> dict[str, Any]:
    """The costs so far, as in a run's summary."""
    return {
        "local_steps": server.local_steps,
        "uploads": server.uploads,
        "bytes_up": server.bytes_up,
        "bytes_down": server.bytes_down,
        "models_on_server": {view: models_on_server(server, view) for view in server.views},
        "models_on_client": models_on_client(server),
        "memory_aided": server.algorithm.memory_aided,
    }


def models_on_server(server: ServerState, view: str) -> int | None:
    """Vectors of the model's size that a server keeps for a view; None for the mean of all clients.

    Distinct vectors of the algorithm, and what the view needs besides.
    """
    if view not in DEPLOYABLE:
        return None
    average = 1 if view in ("averaged", "corrected") else 0
    own = vectors_in(server.algorithm.state(), len(server.algorithm.x))
    return own + average + server.stored_reports(view)


def models_on_client(server: ServerState) -> int:
    """Vectors of the model's size that a client keeps from contact to contact: the most of any."""
    dimension = len(server.algorithm.x)
    kept = (vectors_in(state, dimension) for state in server.client_states.values())
    return max(kept, default=0) + (1 if server.algorithm.client_models else 0)


def vectors_in(value: Any, dimension: int) -> int:
    """How many vectors of that size are in some nested value; each distinct one counts once."""
    distinct = {id(tensor): tensor.numel() // dimension for tensor in tensors_in(value)}
    return sum(distinct.values())
