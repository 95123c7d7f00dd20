"""The results of the FedPBC paper as functions: bias, mixing, staleness and Theorem 1.

"Empowering Federated Learning with Implicit Gossiping" (Xiang, Ioannidis, Yeh, Joe-Wong, Su).
Notation: m clients; client i's uplink is up with probability p_i, independently of the others; A is
the set of clients whose uplink is up in a round; s local steps per round; step size η.
"""

from fedpbc.theory.bias import fedavg_limit, fedavg_weights
from fedpbc.theory.consensus_lemma import consensus_bound, consensus_error
from fedpbc.theory.convergence import gradient_bound, kappa, largest_step_size
from fedpbc.theory.mixing import mean_square_mixing, mixing_matrix, mixing_rate, mixing_rate_bound
from fedpbc.theory.staleness import expected_staleness_bound, staleness

__all__ = [
    "consensus_bound",
    "consensus_error",
    "expected_staleness_bound",
    "fedavg_limit",
    "fedavg_weights",
    "gradient_bound",
    "kappa",
    "largest_step_size",
    "mean_square_mixing",
    "mixing_matrix",
    "mixing_rate",
    "mixing_rate_bound",
    "staleness",
]
