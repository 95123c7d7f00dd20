"""Refuses uploads that are far larger than those of other clients: finite, but of no use.

For servers whose clients may be malicious or faulty: fleets, and Flower apps. What is refused does
not get through, so a simulation on the links that were recorded needs no bound to come to the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from fedpbc.algorithms.client import ClientResult, Vectors
from fedpbc.errors import DivergedError
from fedpbc.simulation.server_state import ServerState

__all__ = ["NORM_FACTOR", "NormBound", "close_bounded_round"]

NORM_FACTOR = 1000.0
"""Generous: clients' norms differ by their data, and fall by orders of magnitude in a long job."""
ENOUGH = 2
"""With fewer other clients there is no telling who is the strange one."""
ABSURD = 1e6
"""Until then an upload may be so many times as large as the model, or as 1."""

Norms = Mapping[str, float]
"""Of each vector of an upload, per round of local work."""


class NormBound:
    """A bound on the norm of what a client uploads, relative to what the others uploaded last.

    Attributes:
        factor: how many times the median of the others' last norms is allowed; 0 disables it.
        largest: the largest norm allowed at all; 0 disables it.

    Example:
        >>> bound = NormBound(factor=10.0)
        >>> bound.count({0: {"model": 1.0}, 1: {"model": 2.0}, 2: {"model": 3.0}})
        >>> bound.problem(3, {"model": 25.0}, {}, scale=1.0)
        'the norm of model is 25 per round, above 20'
        >>> bound.problem(3, {"model": 15.0}, {}, scale=1.0) is None
        True
    """

    def __init__(self, factor: float = NORM_FACTOR, largest: float = 0.0) -> None:
        self.factor, self.largest = factor, largest
        # The norms of each client's last upload that counted.
        self._last: dict[int, dict[str, float]] = {}

    def problem(
        self, client: int, norms: Norms, current: Mapping[int, Norms], scale: float
    ) -> str | None:
        """Why a client's upload with these norms is refused; None if it counts.

        ``current`` are the uploads of its round; ``scale`` is the norm of the server's model.
        """
        for name, norm in norms.items():
            bound = self._bound(client, name, current, scale)
            if not norm <= bound:
                return f"the norm of {name} is {norm:.3g} per round, above {bound:.3g}"
        return None

    def _bound(self, client: int, name: str, current: Mapping[int, Norms], scale: float) -> float:
        bound = self.largest or float("inf")
        if not self.factor:
            return bound
        known: dict[int, Norms] = {i: norms for i, norms in self._last.items() if i != client}
        if len(known) < ENOUGH:
            # In a job's first rounds: those that are there together tell as much.
            known |= {i: norms for i, norms in current.items() if i != client and i not in known}
        others = [norms[name] for norms in known.values() if name in norms]
        usual = median(others) if len(others) >= ENOUGH else 0.0
        return min(bound, self.factor * usual if usual > 0 else ABSURD * max(scale, 1.0))

    def count(self, uploads: Mapping[int, Norms]) -> None:
        """Remember the norms of the uploads that a round counted."""
        self._last |= {client: dict(norms) for client, norms in uploads.items()}

    def forget(self, clients: Iterable[int]) -> None:
        """Clients that have left are no measure for the others."""
        for client in clients:
            self._last.pop(client, None)

    def state(self) -> dict[int, dict[str, float]]:
        """What a checkpoint holds."""
        return {client: dict(norms) for client, norms in self._last.items()}

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Continue from :meth:`state`; what an earlier version wrote says nothing of clients."""
        self._last = {
            int(client): {str(name): float(norm) for name, norm in norms.items()}
            for client, norms in state.items()
            if isinstance(norms, Mapping)
        }


def close_bounded_round(
    server: ServerState, uploads: Mapping[int, Vectors], bound: NormBound
) -> tuple[list[int], list[int], dict[int, str]]:
    """Aggregate the uploads of the next round but those beyond a bound.

    Returns the clients that got through, those whose uploads were used, and why others were
    refused. If the server's model would not be finite, all are refused.
    """
    bound.forget(server.left)
    scale = norm_of(server.algorithm.x)
    norms = {client: _norms(server, client, uploads[client]) for client in sorted(uploads)}
    problems = {i: bound.problem(i, each, norms, scale) for i, each in norms.items()}
    refused = {i: problem for i, problem in problems.items() if problem is not None}
    active = [i for i in norms if i not in refused]
    try:
        selected = _aggregate(server, active, uploads)
    except DivergedError:
        if not active:
            raise
        refused |= dict.fromkeys(active, "with it the server's model would not be finite")
        active, selected = [], _aggregate(server, [], uploads)
    bound.count({i: norms[i] for i in selected})
    return active, selected, dict(sorted(refused.items()))


def _aggregate(server: ServerState, active: list[int], uploads: Mapping[int, Vectors]) -> list[int]:
    opened = server.open_round(active)
    selected = server.select(opened)
    server.close_round(opened, selected, lambda client: ClientResult(uploads[client]))
    return selected


def _norms(server: ServerState, client: int, upload: Vectors) -> dict[str, float]:
    """The norms of an upload, per round of local work; of a model, of how it has changed."""
    segment = server.segment(client, server.round)
    start = segment.start.double()
    return {
        name: norm_of(vector.double() - start if name == "model" else vector) / segment.rounds
        for name, vector in upload.items()
    }


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm, without overflow.

    Example:
        >>> import torch
        >>> f"{norm_of(torch.tensor([3e200, 4e200], dtype=torch.float64)):.3g}"
        '5e+200'
    """
    values = vector.double()
    largest = float(values.abs().max()) if len(values) else 0.0
    return largest * float((values / largest).norm()) if largest else 0.0
