"""FedAvg with known probabilities: each update is divided by its client's p_i^t.

Perazzone, Wang, Ji, Chan: Communication-Efficient Device Scheduling for Federated Learning Using
Stochastic Optimization, INFOCOM 2022.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates
from fedpbc.errors import InputError

__all__ = ["FedAvgKnown"]


class FedAvgKnown(Algorithm):
    """Unbiased by inverse probability weighting; the server must know the probabilities.

    x ← x + η_g · (1/m) Σ_A Δ_i / p_i^t
    """

    name = "fedavg_known"
    paper = "Perazzone et al., INFOCOM 2022"
    one_pass = True
    needs_probabilities = True
    memory_aided = True

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Divide each active client's update by its probability."""
        if not updates:
            return
        p = round.probabilities
        if p is None:
            raise InputError(f"{self.name} needs the probabilities p_i^t of the links")
        for client in round.active.tolist():
            if not p[client] > 0:
                name = f"p of client {client} in round {round.number}"
                raise InputError(name, float(p[client]), "above 0, since its uplink was up")
        total = sum(update.delta / float(p[update.client]) for update in updates)
        self.x = self.x + self.global_lr * (total / self.members)
