"""FOCUS: every client's last gradient is tracked, and the server steps along their sum.

Ying, Li, Yang: Exact and Linear Convergence for Federated Learning under Arbitrary Client
Participation is Attainable, NeurIPS 2025.
"""

from __future__ import annotations

from fedpbc.algorithms.algorithm import Algorithm, Round, ServerInit, Updates
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork, Gradient

__all__ = ["Focus"]


class FocusClient(ClientRule):
    """Step along the change of the client's gradient since it was last heard.

    x_i ← x, y_i ← 0
    for each local step:   y_i ← y_i + g − g_i, g_i ← g, x_i ← x_i − η_t·y_i
    upload y_i; keep g_i
    """

    uploads = ("tracker",)
    keeps = ("gradient",)

    def local_steps(self, work: ClientWork, gradient: Gradient) -> ClientResult:
        """The steps; the model itself is thrown away."""
        x, y, last = work.start, work.start.double() * 0, work.state["gradient"]
        for k in range(work.steps):
            g = gradient(x, k)
            y = y + g.double() - last.double()
            last = g
            x = (x.double() - work.rate(k) * y).to(x.dtype)
        return ClientResult(upload={"tracker": y}, state={"gradient": last})


class Focus(Algorithm):
    """Step along the sum of all clients' last gradients.

    Y ← Y + Σ_A y_i
    x ← x − η_g · η_t · Y                    (not if A^t is empty)

    Y is the sum over all clients of g_i, not their mean: a step is m times FedAvg's of one local
    step, so learning rates are about m/s times smaller.
    """

    name = "focus"
    paper = "Ying et al., NeurIPS 2025"
    one_pass = True
    memory_aided = True

    def __init__(self, init: ServerInit) -> None:
        super().__init__(init)
        self.tracker = self.x.double() * 0  # Y

    def client_rule(self) -> ClientRule:
        """The client's gradient tracking."""
        return FocusClient()

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Add up what the clients tracked, and step."""
        if updates:
            self.tracker = self.tracker + sum(update["tracker"].double() for update in updates)
            self.x = self.x - self.global_lr * round.learning_rate * self.tracker
