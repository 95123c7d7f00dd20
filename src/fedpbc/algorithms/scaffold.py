"""SCAFFOLD: control variates that correct each client's drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector, mean
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork, Vectors
from fedpbc.errors import FedpbcError

__all__ = ["Scaffold"]


class ScaffoldClient(ClientRule):
    """Correct every gradient: g − c_i + c.

    c_i⁺ = c_i − c − Δ_i/(s·η_t)
    upload the model and c_i⁺ − c_i; keep c_i⁺
    """

    uploads = ("model", "control_change")
    keeps = ("control",)

    def __init__(self, clip: float) -> None:
        self.clip = clip

    def correction(self, work: ClientWork) -> Vector:
        """c − c_i, of a norm of at most ``clip``."""
        difference = work.received["control"].double() - work.state["control"].double()
        norm = float(difference.norm())
        return difference * (self.clip / norm) if 0 < self.clip < norm else difference

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """The new control variate: the mean of the gradients that the steps have seen."""
        delta = end.double() - work.start.double()
        new_c_i = (-self.correction(work) - delta / work.step_sum).to(end.dtype)
        change = new_c_i.double() - work.state["control"].double()
        return ClientResult(upload={"control_change": change}, state={"control": new_c_i})


class Scaffold(Algorithm):
    """Correct local gradients by control variates: g − c_i + c.

    x ← x + η_g · mean over A^t of Δ_i
    c ← c + (1/m) Σ_A (c_i⁺ − c_i)

    c goes out with the model. With ``clip``, a client's correction c − c_i is clipped to that norm:
    unbounded, a client's own loop diverges where curvature grows with the gradient. 0 disables it.
    """

    name = "scaffold"
    paper = "Karimireddy et al., ICML 2020"
    memory_aided = True
    tuned_options: ClassVar = {"clip": (0.1, 1.0)}

    def __init__(self, init: ServerInit, *, clip: Annotated[float, Ge(0)] = 0.0) -> None:
        super().__init__(init)
        self.clip = clip
        self.control = self.x * 0  # c

    def client_rule(self) -> ClientRule:
        """The client's control variates."""
        return ScaffoldClient(self.clip)

    def message(self, client: int) -> Vectors:
        """c."""
        return {"control": self.control}

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the updates, and the changes of the control variates over all clients."""
        if updates:
            self.x = self.x + self.global_lr * mean(update.delta for update in updates)
            change = sum(update["control_change"].double() for update in updates)
            self.control = (self.control + change / self.members).to(self.x.dtype)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        if "client_control" in state:
            raise FedpbcError("scaffold now keeps its control variates on the clients: start again")
        super().restore(state)
