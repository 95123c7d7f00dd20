"""Models of a module, evaluated on a task's samples: all of them, or those of each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedpbc.data.natural import parts_of
from fedpbc.tasks.client_data import ClientData, evenly
from fedpbc.tasks.evaluation import class_accuracies, mean_by_client, mean_loss_and_hits
from fedpbc.tasks.inputs import Forward, Inputs
from fedpbc.tasks.losses import Loss
from fedpbc.tasks.manual_backprop import manual_backprop
from fedpbc.tasks.module_vector import ModuleVector
from fedpbc.tasks.task import Evaluation
from fedpbc.tasks.torch_device import repeatable
from fedpbc.tasks.user_metrics import Metric, metric_values, outputs_of

__all__ = ["ModelEvaluator"]

MAX_EXPONENT = 700.0
"""exp of more than this is too large for a number."""
CLIENT_SAMPLES = 1000
"""Test samples on which a client's own model is evaluated, about, if its classes have more."""
ALL_CLIENTS_SAMPLES = 200_000
"""And those of all clients together, about."""
EVALUATED_CLIENTS = 10_000
"""Clients whose own models are evaluated, about: there may be a million."""


class ModelEvaluator:
    """Loss, accuracy and further metrics of a model, given as a vector that fills the module.

    ``weigh``, ``perplexity`` and ``metrics`` are those of :class:`~fedpbc.tasks.Supervised`.
    """

    def __init__(
        self,
        data: ClientData,
        vector: ModuleVector,
        forward: Forward,
        loss: Loss,
        device: torch.device,
        *,
        weigh: Literal["volume", "clients"],
        perplexity: bool,
        metrics: Mapping[str, Metric],
    ) -> None:
        self.data, self.vector, self.forward, self.loss = data, vector, forward, loss
        self.device, self.weigh, self.clients = device, weigh, len(data.parts)
        self.perplexity, self.metrics = perplexity, metrics

    def __getstate__(self) -> dict[str, Any]:
        # Quickly computed again.
        computed = "_test_by_stratum", "_tested", "_outputs", "_test_hits"
        return {k: v for k, v in vars(self).items() if k not in computed}

    @cached_property
    def _outputs(self) -> Callable[[Inputs], Any]:
        """What computes a module's outputs: itself, or the same in less time."""
        if self.device.type == "cpu" and not self.forward.whole:
            plain = manual_backprop(self.vector.module)
            if plain is not None and plain.has_fused_pooling:
                return lambda inputs: plain.outputs(cast(Tensor, inputs))
        return self.forward

    @cached_property
    def _test_hits(self) -> MutableMapping[Tensor, tuple[int, Tensor | None]]:
        """Which test samples a model gets right, for models that were evaluated and still exist.

        With the version of each model: it counts changes in place.
        """
        return WeakTensorKeyDictionary()

    def _load(self, model: Tensor) -> None:
        self.vector.fill(model.to(self.device))
        self.vector.module.eval()

    def _scores(
        self, inputs: Inputs, labels: Tensor, index: Tensor | None = None
    ) -> tuple[float, Tensor | None]:
        """Return the mean loss on samples and, for classes, which ones the module gets right."""
        prepare = self.data.prepare
        return mean_loss_and_hits(self._outputs, self.loss, prepare, inputs, labels, index)

    def test_description(self) -> dict[str, Any] | None:
        """Describe the test samples where it is known whose they are; else None.

        ``most_frequent`` is the accuracy of a model that always predicts the most frequent class.
        """
        counts = self.data.test_counts
        if counts is None:
            return None
        share = None
        if self.data.has_classes:
            labels = self.data.test_labels.cpu().reshape(len(self.data.test_labels), -1)
            width, present = labels.shape[1], counts[counts > 0]
            owners = torch.from_numpy(np.repeat(np.arange(len(present)), present * width))
            cells = owners * self.data.classes + labels.flatten()
            table = torch.bincount(cells, minlength=len(present) * self.data.classes)
            table = table.view(len(present), self.data.classes).double()
            if self.weigh == "clients":
                table = table / table.sum(1, keepdim=True)
            share = float(table.sum(0).max() / table.sum())
        return {
            "clients": int((counts > 0).sum()),
            "samples": int(counts.sum()),
            "weigh": self.weigh,
            "most_frequent": share,
        }

    def evaluate(self, model: Tensor) -> Evaluation:
        """Return loss and accuracy on the test samples and on a part of the training samples."""
        self._load(model)
        data = self.data
        with repeatable(self.device):
            test_loss, test_accuracy, hits = self._test_scores()
            self._test_hits[model] = model._version, hits
            train_loss, train_hits = self._scores(data.inputs, data.labels, data.evaluated)
            extra = {}
            if self.metrics:
                outputs = outputs_of(self.forward, data.prepare, data.test_inputs)
                extra = metric_values(self.metrics, outputs, data.test_labels)
        if self.perplexity:
            # Of a model that has hardly been trained it may be too large for a number.
            extra["perplexity"] = math.exp(test_loss) if test_loss < MAX_EXPONENT else None
        if hits is None or train_hits is None:
            return Evaluation(test_loss=test_loss, train_loss=train_loss, extra=extra)
        per_class = None
        if data.test_labels.dim() == 1:
            per_class = class_accuracies(data.test_labels, hits, data.classes)
        return Evaluation(
            test_loss=test_loss,
            train_loss=train_loss,
            test_accuracy=test_accuracy,
            train_accuracy=float(train_hits.double().mean()),
            per_class=per_class,
            extra=extra,
        )

    def _test_scores(self) -> tuple[float, float | None, Tensor | None]:
        """Return loss, accuracy and hits of the module on the test samples."""
        samples = self.data.test_inputs, self.data.test_labels
        if self.weigh == "clients" and self.data.test_counts is not None:
            counts = self.data.test_counts[self.data.test_counts > 0].tolist()
            return mean_by_client(self._outputs, self.loss, self.data.prepare, *samples, counts)
        loss, hits = self._scores(*samples)
        return loss, None if hits is None else float(hits.double().mean()), hits

    def client_loss(self, client: int, model: Tensor) -> float:
        """Return a model's mean loss over the client's samples."""
        self._load(model)
        with repeatable(self.device):
            return self._scores(*self.data.samples_of(client))[0]

    def client_accuracies(self, model: Tensor) -> list[float | None]:
        """Return the expected accuracy on each client's own held-out samples.

        These are its test samples where it is known whose they are, as in data that clients bring
        themselves. Else they are test samples in the proportions of the client's classes: the
        accuracy on each class, weighted by its share of the client's samples.
        """
        if self.data.test_counts is not None:
            return self._test_accuracies(model)
        hits = self._all_hits(model)
        if hits is None:
            return []
        sums = np.bincount(self.data.test_strata, hits.numpy(), minlength=len(self._tested))
        means = sums / np.maximum(self._tested, 1)
        known = self.data.client_strata @ (self._tested > 0)
        shares = self.data.client_strata @ means
        return [a / k if k else None for a, k in zip(shares.tolist(), known.tolist(), strict=True)]

    def client_accuracy(self, client: int, model: Tensor) -> float | None:
        """Return the same for one client, for instance of its own model.

        Of many test samples in the proportions of its classes only some are used. With very many
        clients, None for most of them.
        """
        if self.data.test_counts is not None:
            held_out = self.data.test_samples_of(client)
            hits = self._hits(model, held_out) if len(held_out) else None
            return None if hits is None else float(hits.mean())
        step = math.ceil(self.clients / EVALUATED_CLIENTS)
        if client % step:
            return None
        most = min(CLIENT_SAMPLES, ALL_CLIENTS_SAMPLES * step // self.clients)
        shares = self.data.client_strata[client] * (self._tested > 0)
        parts = [self._test_by_stratum[kind] for kind in np.flatnonzero(shares)]
        if sum(map(len, parts)) > most:
            counts = np.ceil(most * shares[shares > 0]).astype(int)
            parts = [evenly(part, count) for part, count in zip(parts, counts, strict=True)]
        if not parts:
            return None
        hits = self._hits(model, torch.from_numpy(np.concatenate(parts)))
        if hits is None:
            return None
        hits_by_class = hits.split([len(part) for part in parts])  # type: ignore[no-untyped-call]
        means, held = np.array([float(part.mean()) for part in hits_by_class]), shares[shares > 0]
        # The same sum above and below: a model that is always right has 1, not a little more.
        return float((held * means).sum() / held.sum())

    def _test_accuracies(self, model: Tensor) -> list[float | None]:
        """Return the accuracy on each client's test samples; empty without classes."""
        assert self.data.test_counts is not None
        hits = self._all_hits(model)
        if hits is None:
            return []
        tested = np.flatnonzero(self.data.test_counts)
        hits_by_client = hits.split(self.data.test_counts[tested].tolist())  # type: ignore[no-untyped-call]
        accuracies: list[float | None] = [None] * self.clients
        for client, part in zip(tested.tolist(), hits_by_client, strict=True):
            accuracies[client] = float(part.mean())
        return accuracies

    @cached_property
    def _test_by_stratum(self) -> list[NDArray[np.int64]]:
        """The test samples of each class."""
        return parts_of(self.data.test_strata, self.data.client_strata.shape[1])

    @cached_property
    def _tested(self) -> NDArray[np.int64]:
        """How many test samples each class has."""
        return np.array([len(part) for part in self._test_by_stratum])

    def _all_hits(self, model: Tensor) -> Tensor | None:
        """Return the same for all test samples; of a model that was evaluated it is known."""
        version, hits = self._test_hits.get(model, (None, None))
        if version == model._version:
            return _shares(hits)
        every = torch.arange(len(self.data.test_labels), device=self.device)
        return self._hits(model, every)

    def _hits(self, model: Tensor, samples: Tensor) -> Tensor | None:
        """Return for each of these test samples how right a model is, from 0 to 1.

        None without classes.
        """
        self._load(model)
        data, index = self.data, samples.to(self.device)
        with repeatable(self.device):
            _, hits = self._scores(data.test_inputs, data.test_labels, index)
        return _shares(hits)


def _shares(hits: Tensor | None) -> Tensor | None:
    """How right a model is about each sample, from 0 to 1."""
    return None if hits is None else hits.double().reshape(len(hits), -1).mean(dim=1)
