"""FedPBC: federated postponed broadcast.

Xiang, Ioannidis, Yeh, Joe-Wong, Su: Empowering Federated Learning with Implicit Gossiping.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, Updates, mean

__all__ = ["FedPBC"]


class FedPBC(Algorithm):
    """Everyone trains on from their own model; whoever gets through is averaged and gets the mean.

    for every client i:        x_i* ← x_i + η_g·Δ_i
    if A^t is not empty:       x ← mean over A^t of x_i*
    for every i in A^t:        x_i ← x           (for the others x_i ← x_i*)

    The first and the last line are the clients' and the network's: an update's end is x_i* already.
    """

    name = "fedpbc"
    paper = "Xiang et al., Empowering Federated Learning with Implicit Gossiping"
    one_pass = True
    everyone_trains = True
    client_models = True
    models_on_client = 1

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average those who got through."""
        if updates:
            self.x = mean(update.end for update in updates)
