"""AREA: the server's model is the mean of the models that the clients last delivered.

Iakovidou, Kim: Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under
Arbitrary Delays, arXiv 2405.10123.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates, Vector
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork, Vectors

__all__ = ["Area"]


class AreaClient(ClientRule):
    """Upload how the trained model differs from the one delivered last: w_i − h_i; keep h_i ← w_i.

    h_i is x^0 before the first delivery.
    """

    uploads = ("change",)
    keeps = ("delivered",)

    def initial_state(self, x0: Vector) -> Vectors:
        """The initial model."""
        return {"delivered": x0}

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """The difference between the two models."""
        change = end.double() - work.state["delivered"].double()
        return ClientResult(upload={"change": change}, state={"delivered": end})


class Area(Algorithm):
    """Keep the mean of the models that all clients last delivered.

    x ← x + η_g · (1/m) Σ_A (w_i − h_i)

    In rounds, where the original applies uploads as they come. With η_g = 1, x is the mean of h_i
    over all m clients.
    """

    name = "area"
    paper = "Iakovidou and Kim, arXiv 2405.10123"
    one_pass = True
    memory_aided = True

    def client_rule(self) -> ClientRule:
        """The client's memory of its last delivery."""
        return AreaClient()

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Add up the differences."""
        if updates:
            change = sum(update["change"].double() for update in updates)
            self.x = self.x + self.global_lr * (change / self.members)
