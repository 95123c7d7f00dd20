"""FedPBC: federated postponed broadcast.

Xiang, Ioannidis, Yeh, Joe-Wong, Su: Empowering Federated Learning with Implicit Gossiping:
Mitigating Connection Unreliability Amidst Unknown and Arbitrary Dynamics. IEEE Transactions on
Signal Processing 73 (2025), 766–780.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates

__all__ = ["FedPBC"]


class FedPBC(Algorithm):
    """Every client keeps training its own model; the active ones are averaged and get the mean.

    On the clients
        for every i:           x_i* ← x_i + η_g·Δ_i
    On the server
        if A^t is not empty:   x ← mean over A^t of x_i*
        for every i in A^t:    x_i ← x           (for the others x_i ← x_i*)

    ``update.model`` is x_i*: the caller applies η_g and delivers x.
    """

    name = "fedpbc"
    paper = "Xiang et al., IEEE TSP 2025"
    one_pass = True
    robust_means = True
    everyone_trains = True
    client_models = True

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the active clients' models."""
        if updates:
            self.x = self.mean_of(update.shared_model for update in updates)
