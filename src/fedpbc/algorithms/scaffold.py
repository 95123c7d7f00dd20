"""SCAFFOLD: control variates that correct each client's drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector, mean

__all__ = ["Scaffold"]


class Scaffold(Algorithm):
    """Correct local gradients by control variates: g − c_i + c.

    x ← x + η_g · mean over A^t of Δ_i
    c_i⁺ = c_i − c − Δ_i/(s·η_t)
    c ← c + (1/m) Σ_A (c_i⁺ − c_i)
    """

    name = "scaffold"
    paper = "Karimireddy et al., ICML 2020"
    memory_aided = True
    vectors_per_upload = 2
    models_on_client = 1

    def __init__(self, init: ServerInit) -> None:
        super().__init__(init)
        self.control = self.x.double() * 0  # c
        # c_i, which lives on the client; 0 for a client that never took part.
        self.client_control: dict[int, Vector] = {}

    @classmethod
    def models_on_server(cls, clients: int) -> int:
        """The model and c."""
        return 2

    def correction(self, client: int) -> Vector | None:
        """c − c_i."""
        c_i = self.client_control.get(client)
        return (self.control if c_i is None else self.control - c_i).to(self.x.dtype)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the updates, then the changes of the control variates."""
        if not updates:
            return
        self.x = self.x + self.global_lr * mean(update.delta for update in updates)
        total = self.control * 0
        for update in updates:
            # c_i⁺ − c_i = −c − Δ_i/(s·η_t)
            change = -self.control - update.delta / (round.local_steps * round.learning_rate)
            c_i = self.client_control.get(update.client)
            new_c_i = (change if c_i is None else c_i.double() + change).to(self.x.dtype)
            total += new_c_i.double() if c_i is None else new_c_i.double() - c_i.double()
            self.client_control[update.client] = new_c_i
        self.control = self.control + total / self.clients
