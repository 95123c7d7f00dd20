"""Amplified SCAFFOLD: control variates over windows of rounds, whose progress is amplified.

Crawshaw, Liu: Federated Learning under Periodic Client Participation and Heterogeneous Data: A New
Communication-Efficient Algorithm and Analysis, NeurIPS 2024.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from fedpbc.algorithms.algorithm import Round, ServerInit, Updates, Vector
from fedpbc.algorithms.amplified_fedavg import AmplifiedFedAvg
from fedpbc.algorithms.client import ClientResult, ClientRule, ClientWork, Vectors
from fedpbc.errors import InputError

__all__ = ["AmplifiedScaffold"]


BASE, DIGITS = 256, 3
"""Every type of a model has all whole numbers up to 256, and bfloat16 not all beyond."""


def digits(value: int, like: Vector) -> Vector:
    """A count as a vector that no type of model rounds; a shorter model has fewer digits.

    Example:
        >>> import torch
        >>> digits(1000, torch.zeros(9)), number(digits(1000, torch.zeros(9).bfloat16()))
        (tensor([232.,   3.,   0.]), 1000)
    """
    size, rest = min(DIGITS, len(like)), value
    parts = []
    for _ in range(size - 1):
        rest, digit = divmod(rest, BASE)
        parts.append(digit)
    vector = like.new_tensor([*parts, rest])
    if number(vector) != value:
        raise InputError("the model's type", like.dtype, "float32, to count to so many rounds")
    return vector


def number(vector: Vector) -> int:
    """The count that :func:`digits` made a vector of."""
    return sum(int(digit) * BASE**k for k, digit in enumerate(vector))


class AmplifiedScaffoldClient(ClientRule):
    """Correct every gradient, g − c_i + c, with c_i fixed over a window of P rounds.

    in a new window:   c_i ← ḡ_i if there is one; n_i ← 0
    g = c_i − c − Δ_i/(s·η_t), the mean of the gradients of this round
    ḡ_i ← (n_i·ḡ_i + g)/(n_i + 1), n_i ← n_i + 1
    upload the model and the change of ḡ_i (of c_i to ḡ_i at first); keep c_i, ḡ_i, n_i
    """

    uploads = ("model", "control_change")
    keeps = ("control", "gradients", "count", "window")

    def __init__(self, window: int) -> None:
        self.window = window

    def initial_state(self, x0: Vector) -> Vectors:
        """No gradients yet."""
        zeros, none = x0 * 0, digits(0, x0)
        return {"control": zeros, "gradients": zeros, "count": none, "window": none}

    def _control(self, work: ClientWork) -> tuple[Vector, int]:
        """c_i, and n_i in this window."""
        count, window = number(work.state["count"]), number(work.state["window"])
        if window == work.first_round // self.window:
            return work.state["control"].double(), count
        return work.state["gradients" if count else "control"].double(), 0

    def correction(self, work: ClientWork) -> Vector:
        """c − c_i."""
        return work.received["control"].double() - self._control(work)[0]

    def finish(self, work: ClientWork, end: Vector) -> ClientResult:
        """The mean of the gradients of all rounds of this window."""
        c, (c_i, n) = work.received["control"].double(), self._control(work)
        g = c_i - c - (end.double() - work.start.double()) / work.step_sum
        before = work.state["gradients"].double() if n else c_i
        after = ((n * before + g) / (n + 1)).to(end.dtype)
        state = {
            "control": c_i,
            "gradients": after,
            "count": digits(n + 1, end),
            "window": digits(work.first_round // self.window, end),
        }
        return ClientResult(upload={"control_change": after.double() - before}, state=state)


class AmplifiedScaffold(AmplifiedFedAvg):
    """SCAFFOLD whose control variates and amplification work in windows of P rounds.

    x ← mean over A^t of x + η_g·Δ_i
    if (t + 1) mod P = 0:   x ← y + γ·(x − y), y ← x
                            c ← c + (1/m) Σ (ḡ_i − c_i) over the clients heard in the window

    c goes out with the model.
    """

    name = "amplified_scaffold"
    paper = "Crawshaw and Liu, NeurIPS 2024"
    memory_aided = True
    robust_means = False

    def __init__(
        self,
        init: ServerInit,
        *,
        window: Annotated[int, Ge(1)] = 20,
        gamma: Annotated[float, Ge(1)] = 1.5,
    ) -> None:
        super().__init__(init, window=window, gamma=gamma)
        self.control = self.x * 0  # c
        self.control_change = self.x.double() * 0  # what the window will add to m·c

    def client_rule(self) -> ClientRule:
        """The client's control variates."""
        return AmplifiedScaffoldClient(self.window)

    def message(self, client: int) -> Vectors:
        """c."""
        return {"control": self.control}

    def aggregate(self, round: Round, updates: Updates) -> None:
        """Average the updates and collect the changes of the control variates."""
        change = self.control_change
        for update in updates:
            change = change + update["control_change"].double()
        self.control_change = change
        super().aggregate(round, updates)

    def end_window(self) -> None:
        """Amplify, and take the new control variates."""
        super().end_window()
        self.control = (self.control + self.control_change / self.members).to(self.x.dtype)
        self.control_change = self.control_change * 0
