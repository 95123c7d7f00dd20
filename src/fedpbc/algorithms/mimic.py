"""MimiC: each update is corrected so that it mimics the central one.

Sun, Mao, Zhang: MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central
Updates, IEEE Transactions on Mobile Computing 2024.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates, Vector, mean

__all__ = ["MimiC"]


class MimiC(Algorithm):
    """Correct each update by how the client's last one differed from the server's.

    v_i = Δ_i + c_i, v = mean over A^t of v_i
    x ← x + η_g · v
    c_i ← v − Δ_i for i in A^t

    c_i is 0 before the client's first update. The sum of all c_i stays 0.
    """

    name = "mimic"
    paper = "Sun et al., IEEE TMC 2024"
    memory_aided = True

    def __init__(self, init: ServerInit) -> None:
        super().__init__(init)
        self.corrections: dict[int, Vector] = {}  # c_i

    def leave(self, client: int) -> None:
        """Forget the client's correction; the others' share it, so that their sum stays 0.

        Otherwise the rest would push the model in one direction in every later round.
        """
        super().leave(client)
        left = self.corrections.pop(client, None)
        if left is not None and self.corrections:
            share = left.double() / len(self.corrections)
            for other, correction in self.corrections.items():
                self.corrections[other] = (correction.double() + share).to(self.x.dtype)

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the corrected updates, then correct anew."""
        if not updates:
            return
        deltas = {update.client: update.delta for update in updates}
        v = mean(
            delta + self.corrections[client].double() if client in self.corrections else delta
            for client, delta in deltas.items()
        )
        self.x = self.x + self.global_lr * v
        for client, delta in deltas.items():
            self.corrections[client] = (v - delta).to(self.x.dtype)
