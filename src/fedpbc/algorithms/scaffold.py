"""SCAFFOLD: control variates that correct each client's drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, mean

if TYPE_CHECKING:
    from fedpbc.algorithms.algorithm import Vector

__all__ = ["Scaffold"]


class Scaffold(Algorithm):
    """Local gradients corrected by control variates: g − c_i + c.

    x ← x + η_g · mean over A^t of Δ_i
    c_i⁺ = c_i − c − Δ_i/(s·η_t)
    c ← c + (1/m) Σ_A (c_i⁺ − c_i)
    """

    name = "scaffold"
    paper = "Karimireddy et al., ICML 2020"
    memory_aided = True
    vectors_per_upload = 2
    models_on_client = 1

    def __init__(self, fleet: ServerInit) -> None:
        super().__init__(fleet)
        self.control = self.x.double() * 0
        # c_i lives on the client; a client that never took part has c_i = 0.
        self.client_control: dict[int, Vector] = {}

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """The model and c."""
        return 2

    def correction(self, client: int) -> Vector | None:
        """c − c_i."""
        own = self.client_control.get(client)
        correction = self.control if own is None else self.control - own
        return correction.to(self.x.dtype)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the updates, then the changes of the control variates."""
        if not updates:
            return
        step = mean(update.delta for update in updates)
        self.x = self.x + self.global_lr * step
        total = self.control * 0
        for update in updates:
            # c_i⁺ − c_i = −c − Δ_i/(s·η_t)
            change = -self.control - update.delta / (round.local_steps * round.learning_rate)
            own = self.client_control.get(update.client)
            renewed = (change if own is None else own.double() + change).to(self.x.dtype)
            total += renewed.double() if own is None else renewed.double() - own.double()
            self.client_control[update.client] = renewed
        self.control = self.control + total / self.clients
