"""MIFA: every client's last update is remembered, and all of them are applied in every round.

Gu, Huang, Zhang, Huang: Fast Federated Learning in the Presence of Arbitrary Device Unavailability,
NeurIPS 2021. With the memory on the clients, the server's rule is that of FedLaAvg: Yan, Niu, Ding,
Zheng, Wu, Chen, Tang, Wu: Distributed Non-Convex Optimization with Sublinear Speedup under
Intermittent Client Availability, INFORMS Journal on Computing 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Update, Updates, Vector
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork

__all__ = ["MIFA"]


class MIFAClient(ClientRule):
    """Upload Δ_i − G_i instead of the model; keep G_i ← Δ_i.

    With ``rescale``, G_i is Δ_i/η_t.
    """

    uploads = ("change",)
    keeps = ("memory",)

    def __init__(self, rescale: bool) -> None:
        self.rescale = rescale

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """The new memory, and how it differs from the one that the server has summed up."""
        scale = work.rates[-1] if self.rescale else 1.0
        memory = ((end.double() - work.start.double()) / scale).to(end.dtype)
        change = memory.double() - work.state["memory"].double()
        return ClientResult(upload={"change": change}, state={"memory": memory})


class MIFA(Algorithm):
    """Remember every client's last update and apply all of them in every round.

    G_i ← Δ_i for i in A^t
    x ← x + η_g · (1/m) Σ_all G_i            (also if A^t is empty)

    With ``over="heard"`` the sum is divided by the number of clients heard from so far instead of
    m. With ``memory="client"`` each client keeps its G_i and uploads Δ_i − G_i; the server keeps
    only their sum. With ``rescale``, G_i is Δ_i/η_t and the sum is multiplied by the current η_t,
    as in the original.
    """

    name = "mifa"
    paper = "Gu et al., NeurIPS 2021"
    one_pass = True
    robust_means = True
    later_options = ("over", "memory")
    memory_aided = True
    tuned_options: ClassVar = {"over": ("heard",)}

    def __init__(
        self,
        init: ServerInit,
        *,
        rescale: bool = False,
        over: Literal["all", "heard"] = "all",
        memory: Literal["server", "client"] = "server",
    ) -> None:
        super().__init__(init)
        self.rescale, self.over, self.memory = rescale, over, memory
        self.stored: dict[int, Vector] = {}  # G_i, unless the clients keep them
        # Σ_all G_i, updated incrementally: summing m·d numbers in every round would be slow.
        self.memory_total = self.x.double() * 0
        self.heard = np.zeros(init.clients, dtype=bool)

    def client_rule(self) -> ClientRule | None:
        """The clients' memory, if it is theirs."""
        return MIFAClient(self.rescale) if self.memory == "client" else None

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Update the sum of the memories, then apply it."""
        scale = round.learning_rate if self.rescale else 1.0
        total, heard = self.memory_total.clone(), self.heard.copy()
        for update in updates:
            total += self._change(update, scale)
            heard[update.client] = True
        self.memory_total, self.heard = total, heard
        count = int(heard.sum()) if self.over == "heard" else self.members
        if count:
            average = total / count if self.aggregation.is_mean else self._robust_memory(count)
            self.x = self.x + self.global_lr * (scale * average)

    def leave(self, client: int) -> None:
        """Forget what the client has sent."""
        super().leave(client)
        self.heard = self.heard & (np.arange(self.clients) != client)
        if (stored := self.stored.pop(client, None)) is not None:
            self.memory_total = self.memory_total - stored.double()

    def _robust_memory(self, count: int) -> Vector:
        """The robust mean of so many memories; clients never heard count as 0."""
        memories = [self.stored[client] for client in sorted(self.stored)]
        memories += [self.x * 0] * (count - len(memories))
        average: Vector = self.aggregation.robust_mean(memories)
        return average

    def _change(self, update: Update, scale: float) -> Vector:
        """How a client's memory changes."""
        if self.memory == "client":
            return update["change"].double()
        stored = (update.delta / scale).to(self.x.dtype)
        before = self.stored.get(update.client)
        self.stored[update.client] = stored
        return stored.double() if before is None else stored.double() - before.double()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; an earlier version kept every G_i in ``memory``."""
        if isinstance(stored := state.get("memory"), Mapping):
            heard = self.heard.copy()
            heard[list(stored)] = True
            state = {**state, "memory": "server", "stored": dict(stored), "heard": heard}
        super().restore(state)
