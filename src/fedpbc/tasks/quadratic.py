"""The paper's quadratic task: F_i(x) = ‖x − u_i‖²/2, with exact gradients."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import ArrayLike
from torch import Tensor

from fedpbc.errors import InputError
from fedpbc.limits import numbers_of
from fedpbc.options import check_arguments, check_kind
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.tasks.stacked_training import StackAdvice
from fedpbc.tasks.task import Evaluation, Gradients
from fedpbc.tasks.torch_device import find_device, refuse_double

__all__ = ["Quadratic"]


class Quadratic:
    """Each client minimises the distance to its own target; x* is the mean of the targets.

    Everything is in double precision and starts at x⁰ = 0. A view's ``test_loss`` is F, and its
    ``distance`` is ‖x − x*‖. The work runs on ``device``; models enter and leave as vectors on the
    CPU.

    Example:
        >>> task = Quadratic([[0.0], [100.0]])
        >>> task
        <Quadratic: dimension 1, 2 clients>
        >>> task.evaluate(torch.tensor([40.0], dtype=torch.float64)).extra["distance"]
        10.0
    """

    class_shares = None

    @check_arguments
    def __init__(
        self,
        targets: ArrayLike,
        *,
        training: LocalTraining | None = None,
        seed: Annotated[int, Ge(0)] = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = find_device(device)
        refuse_double(self.device, [torch.float64])
        self.training = LocalTraining() if training is None else training
        check_kind("training", self.training, LocalTraining, "a LocalTraining")
        # Refuses optimizers that cannot train clients in a stack.
        self.training.begin([], torch.zeros(1))
        array = numbers_of("task.targets", targets)
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
            raise InputError(
                f"task.targets is an array of {array.dtype} and shape {array.shape}, "
                "but should be numbers, clients × dimensions"
            )
        if not np.isfinite(array).all():
            raise InputError("task.targets has infinite or NaN values, but should be finite")
        self.targets = torch.from_numpy(array.astype(np.float64)).to(self.device)
        self.seed = seed
        self.clients = len(array)
        self.layout = Layout(("x",), ((array.shape[1],),))
        self.optimum = self.targets.mean(dim=0)

    def __repr__(self) -> str:
        clients = f"{self.clients:,} client{'' if self.clients == 1 else 's'}"
        return f"<Quadratic: dimension {self.layout.dimension:,}, {clients}>"

    def fingerprint(self) -> str:
        """Return a hash of the targets."""
        return sha256(self.targets.cpu().numpy().tobytes()).hexdigest()

    def init(self) -> Tensor:
        """Return x⁰ = 0."""
        return torch.zeros(self.layout.dimension, dtype=torch.float64, device="cpu")

    def local_steps(
        self, client: int, start: Tensor, round: int, first_batch: int, correction: Tensor | None
    ) -> Tensor:
        """Make exact gradient steps towards the client's target."""
        model = start.to(self.device, copy=True)
        corrections = [] if correction is None else [correction.to(self.device)]
        step = self.training.begin([model], self.training.rate(round), corrections)
        for _ in range(self.training.local_steps):
            step([model - self.targets[client]])
        return model.cpu()

    def batch_gradient(self, client: int, model: Tensor, batch: int) -> Tensor:
        """Return x − u_i, whichever the batch."""
        return (model.to(self.device) - self.targets[client]).cpu()

    def client_loss(self, client: int, model: Tensor) -> float:
        """Return F_i(x)."""
        return float(0.5 * (model.to(self.device) - self.targets[client]).square().sum())

    def stack_advice(self) -> StackAdvice:
        """Return that stacking is always worthwhile."""
        return StackAdvice(True, True, "the quadratic task is a few vector operations")

    def stacked_local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> None:
        """Run one round for many clients at once, in place."""
        rates = torch.tensor(
            [self.training.rate(t) for t in rounds], dtype=models.dtype, device=models.device
        )
        targets = self.targets[torch.tensor(clients, device=self.device)]
        step = self.training.begin([models], rates, [] if correction is None else [correction])
        for _ in range(self.training.local_steps):
            step([models - targets])

    def evaluate(self, model: Tensor) -> Evaluation:
        """Return F(x) and the distance to the optimum."""
        model = model.to(self.device)
        loss = 0.5 * (model - self.targets).square().sum(dim=1).mean()
        distance = torch.linalg.vector_norm(model - self.optimum)
        return Evaluation(
            test_loss=float(loss), train_loss=float(loss), extra={"distance": float(distance)}
        )

    def gradients(self, model: Tensor, draw: int) -> Gradients:
        """Return the exact values: ∇F(x) = x − x*, no noise, and ∇F_i − ∇F independent of x."""
        slope = (model.to(self.device) - self.optimum).square().sum()
        spread = (self.targets - self.optimum).square().sum(dim=1).mean()
        return Gradients(slope=float(slope), noise=0.0, spread=float(spread))
