"""A supervised task's local steps for many clients at once.

Clients whose batches have the same size form a stack. Those with fewer samples than a batch use
all they have, so that there are at most as many stacks as a batch has samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedpbc.tasks.client_data import ClientData
from fedpbc.tasks.dense_kernel import dense_steps, has_dense_steps
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.losses import Loss
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.tasks.stacked_training import StackAdvice, advise, on_all_cores, stacked_steps

__all__ = ["StackTrainer"]

STACK_BYTES = 2**22
"""Bytes of a stack that are trained at once; the fastest value with a shared cache of 32 MB."""
INDEX_BYTES = 2**26
"""Bytes of the samples' numbers that are prepared at once for the compiled kernel."""
GPU_ROWS = 128
"""Rows that a GPU trains at once; fixed, because the order of its sums depends on their number."""


class StackTrainer:
    """Trains models, the rows of one tensor, each on its own client's batches."""

    def __init__(
        self, data: ClientData, layout: Layout, training: LocalTraining, device: torch.device
    ) -> None:
        self.data, self.layout, self.training, self.device = data, layout, training, device

    def advice(self, module: nn.Module, loss: Loss) -> StackAdvice:
        """Return whether clients can be stacked, and whether it pays."""
        if not isinstance(self.data.inputs, Tensor):
            return StackAdvice(False, False, "samples have several inputs")
        if not self.training.is_built_in:
            return StackAdvice(False, False, "the optimizer is PyTorch's")
        return advise(module, loss)

    def local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> Tensor | None:
        """Run one round for many clients, in place on ``models``, one row per client.

        Return which models are finite, where that is known.
        """
        rates = torch.tensor(
            [self.training.rate(t) for t in rounds], dtype=models.dtype, device=models.device
        )
        sizes = self.data.batches.sizes_of(clients)
        if (sizes == sizes[0]).all():
            return self._train(clients, models, rates, first_batches, correction)
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size).tolist()
            stack = models[rows]
            self._train(
                [clients[k] for k in rows],
                stack,
                rates[rows],
                [first_batches[k] for k in rows],
                None if correction is None else correction[rows],
            )
            models[rows] = stack
        return None

    def _train(
        self,
        clients: Sequence[int],
        models: Tensor,
        rates: Tensor,
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> Tensor | None:
        """Run one round for clients whose batches have the same size, in place."""
        if correction is None and self._can_use_kernel(models):
            return self._train_compiled(clients, models, rates, first_batches)
        steps, data, on_cpu = self.training.local_steps, self.data, self.device.type == "cpu"
        min_rows = 2 if on_cpu else GPU_ROWS

        def advance(rows: slice) -> None:
            batches = data.stacked_batches(clients[rows], first_batches[rows], steps)
            stack = models[rows], batches, rates[rows]
            corrections = None if correction is None else correction[rows]
            stacked_steps(self.training, self.layout, *stack, corrections, min_rows)

        if on_cpu:
            # A few rows at a time: their models stay in the cache for all steps of the round.
            max_rows = STACK_BYTES // (models.element_size() * models.shape[1])
            on_all_cores(advance, len(clients), max_rows)
        else:
            for k in range(0, len(clients), GPU_ROWS):
                advance(slice(k, k + GPU_ROWS))
        return None

    def _train_compiled(
        self, clients: Sequence[int], models: Tensor, rates: Tensor, first_batches: Sequence[int]
    ) -> Tensor:
        """The same in the compiled kernel, which holds one model at a time in the cache."""
        steps = self.training.local_steps
        most = max(1, INDEX_BYTES // (8 * steps * self.training.batch_size))
        finite = []
        for k in range(0, len(clients), most):
            chunk = slice(k, k + most)
            inputs, labels, index = self.data.gather(clients[chunk], first_batches[chunk], steps)
            widths = [inputs.shape[1], *(shape[0] for shape in self.layout.shapes[::2])]
            finite.append(dense_steps(models[chunk], widths, inputs, labels, index, rates[chunk]))
        return torch.cat(finite)

    def _can_use_kernel(self, models: Tensor) -> bool:
        """Whether the compiled kernel can train these models: it is for plain SGD in float32."""
        return (
            has_dense_steps()
            and isinstance(self.data.inputs, Tensor)
            and self.device.type == "cpu"
            and self.training.is_plain
            and models.dtype == self.data.inputs.dtype == torch.float32
            and self.data.is_raw
        )
