"""Supervised learning: any module on any tensors, partitioned over the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedpbc import defaults
from fedpbc.data import Augmentation
from fedpbc.errors import InputError
from fedpbc.limits import MAX_CLIENTS
from fedpbc.options import check_arguments, check_kind
from fedpbc.randomness import generator, integer_seed
from fedpbc.tasks.generated_data import client_data_of
from fedpbc.tasks.inputs import Forward, Inputs
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.losses import Loss, find_loss, model_loss
from fedpbc.tasks.manual_backprop import ManualBackprop, manual_backprop
from fedpbc.tasks.model_evaluator import ModelEvaluator
from fedpbc.tasks.module_check import (
    check_metrics,
    check_module,
    check_training_batch,
    fit_precision,
    refuse_one_hot,
)
from fedpbc.tasks.module_vector import ModuleVector
from fedpbc.tasks.parameter_layout import RunningStatistics, layout_of, parameters_of
from fedpbc.tasks.stack_trainer import StackTrainer
from fedpbc.tasks.stacked_training import StackAdvice
from fedpbc.tasks.task import Evaluation, Gradients
from fedpbc.tasks.torch_device import find_device, refuse_double, repeatable, seeded
from fedpbc.tasks.user_data import Partition, Samples
from fedpbc.tasks.user_metrics import Metric

__all__ = ["Supervised"]

MAX_PADDING = 10_000
"""Pixels."""
ESTIMATE_CLIENTS = 10
"""Clients whose gradients are estimated; more would cost more of a run than the bound is worth."""


class Supervised:
    """A module, its data, and the partition of the data over the clients.

    Integer labels are classes: they are partitioned by Dirichlet(alpha) into equal volumes, and the
    accuracy is evaluated. Other labels (for example of a regression) are partitioned at random and
    need a ``loss``. ``partition`` (one array of indices per client) replaces both.

    One module serves all clients in turn; x⁰ is its initial value. Parameters that do not require
    a gradient stay unchanged. Module and samples are moved to ``device``, where training and
    evaluation run; models enter and leave as vectors on the CPU.

    Attributes:
        parts: the indices of each client's samples.
        device: where the task computes.
        test_is_held_out: whether the test samples were taken from the clients' own.
        metrics: further values of an evaluation, by name.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(200, 5)), np.arange(200) % 3
        >>> def sureness(outputs, labels):
        ...     return outputs.softmax(1).amax(1).mean()
        >>> task = Supervised(
        ...     nn.Linear(5, 3), (x, y), (x, y), clients=10, metrics={"sureness": sureness}
        ... )
        >>> task
        <Supervised: Linear with 18 parameters, 10 clients, 200 samples>
        >>> task.class_shares.shape
        (10, 3)
        >>> 0.3 < task.evaluate(task.init()).extra["sureness"] < 1
        True
    """

    @check_arguments
    def __init__(
        self,
        module: nn.Module,
        train: Samples,
        test: Samples,
        *,
        clients: Annotated[int, Ge(1), Le(MAX_CLIENTS)] | None = None,
        alpha: Annotated[float, Gt(0)] | None = None,
        partition: Partition | None = None,
        loss: Loss | str = functional.cross_entropy,
        training: LocalTraining | None = None,
        seed: Annotated[int, Ge(0)] = 0,
        crop_padding: Annotated[int, Ge(0), Le(MAX_PADDING)] = 0,
        flip: bool = False,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
        train_samples: Annotated[int, Ge(0)] = defaults.TRAIN_SAMPLES,
        validation: Annotated[float, Ge(0), Lt(1)] = 0.0,
        device: str | torch.device = "cpu",
        metrics: Mapping[str, Metric] | None = None,
        test_clients: Any = None,
        weigh: Literal["volume", "clients"] = "volume",
        perplexity: bool = False,
        running_statistics: RunningStatistics = "average",
    ) -> None:
        """Set up the task.

        Args:
            module: any module.
            train: inputs and labels, as tensors, arrays or data frames; or a torch ``Dataset`` of
                such pairs, or a Hugging Face dataset with a column of each. Inputs may be a tuple
                of tensors, for ``module(*inputs)``, or a table of them, for ``module(**inputs)``.
                Read once. Floats are converted to the module's precision where it takes no other.
                Or a generator of each client's samples; ``test`` is then None.
            test: the same.
            clients: m; None: 100, or as many as ``partition`` has arrays.
            alpha: of the Dirichlet partition; small is heterogeneous. None: 0.1.
            partition: indices into ``train``, one array per client, instead of a drawn partition.
            loss: function of a batch's outputs and labels, the mean over the batch; or a name:
                "cross_entropy", "next_token", "binary_cross_entropy", "squared", "absolute",
                "huber", or "model": the module is called with ``labels`` and returns its loss.
            training: the local steps.
            seed: of the partition, the batches and any randomness in the module.
            crop_padding: padding of the random crop of [N, H, W, C] images, drawn once per batch.
            flip: random horizontal flip of such images, drawn once per batch.
            normalise: the channels' means and deviations; with it, inputs are [N, H, W, C] images
                and the module sees [B, C, H, W].
            train_samples: how many of the training samples an evaluation uses; 0: all.
            validation: the share of each client's samples that is kept out of its training and
                evaluated in place of ``test``, of which nothing is used then; for tuning.
            device: cpu, cuda, cuda:1, … or mps. Module and all samples are moved there.
            metrics: further values of an evaluation by name, each a function of the outputs for
                all test samples and their labels: ``{"f1": f1}``. A value that is not finite, such
                as an undefined ratio, is recorded as missing.
            test_clients: whose each test sample is, a number of a client for each: data that
                clients bring themselves has test samples of each. Every client is then evaluated
                on its own.
            weigh: with ``test_clients``, whether an evaluation is the mean over all test samples
                ("volume") or the mean of the clients' means ("clients").
            perplexity: whether evaluations have a ``perplexity``, exp(test loss): for a language
                model, whose loss is in nats per token.
            running_statistics: of layers such as BatchNorm: "average" them with the model, keep
                them on the "client", together with the layers' parameters (FedBN), or "refuse".
        """
        self.device = find_device(device)
        self.test_is_held_out = False
        check_kind("module", module, nn.Module, "a torch.nn.Module")
        self.training = LocalTraining() if training is None else training
        check_kind("training", self.training, LocalTraining, "a LocalTraining")
        named = find_loss(loss)
        loss = named.function
        self.loss, self.seed = loss, seed
        self.layout = layout_of(module, running_statistics)
        if not parameters_of(module):
            raise InputError("module has no parameters, but should have some to train")
        self.data = client_data_of(
            train,
            test,
            clients=clients,
            alpha=alpha,
            partition=partition,
            seed=seed,
            batch_size=self.training.batch_size,
            augmentation=Augmentation(seed, crop_padding, flip),
            normalise=normalise,
            train_samples=train_samples,
            validation=validation,
            test_clients=test_clients,
            label_kind=named.labels,
        )
        if weigh == "clients" and self.data.test_counts is None:
            raise InputError("weigh", weigh, "'volume', or given with test_clients")
        if loss is functional.cross_entropy and not self.data.has_classes:
            refuse_one_hot(self.data.labels)
            raise InputError(
                f"labels are {self.data.labels.dtype}, but should be integers, or come with loss=…"
            )
        if loss is model_loss:
            self.data.add_labels()
        self.parts = self.data.parts
        self.clients = len(self.parts)
        fit_precision(module, Forward(module, whole=loss is model_loss), self.data, loss)
        tensors = *module.parameters(), *module.buffers(), *self.data.arrays
        refuse_double(self.device, [tensor.dtype for tensor in tensors])
        self.data.move_to(self.device)
        self.module = module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._vector = ModuleVector(self.module, running_statistics, self.layout)
        for parameter in self._vector.parameters:
            self.training.check_precision(parameter.dtype)
        self._initial = self._vector.flatten().cpu()
        self._forward = Forward(self.module, whole=loss is model_loss)
        checked = self.module, self._forward, self.data
        check_module(*checked, loss)
        if self.layout.statistics:
            check_training_batch(*checked)
        # An optimizer of PyTorch may refuse these parameters.
        self.training.begin(self._vector.parameters, self.training.rate(0))
        check_metrics(*checked, {} if metrics is None else metrics)
        self.metrics: Mapping[str, Metric] = {**named.metrics, **(metrics or {})}
        self._stack = StackTrainer(self.data, self.layout, self.training, self.device)
        self._evaluator = ModelEvaluator(
            self.data,
            self._vector,
            self._forward,
            loss,
            self.device,
            weigh=weigh,
            perplexity=perplexity,
            metrics=self.metrics,
        )

    def __repr__(self) -> str:
        trained = f"{type(self.module).__name__} with {len(self._initial):,} parameters"
        clients = f"{self.clients:,} client{'' if self.clients == 1 else 's'}"
        return f"<Supervised: {trained}, {clients}, {self.samples.sum():,} samples>"

    def __getstate__(self) -> dict[str, Any]:
        # Recreated in the other process: the hand-written pass refers to the module's parameters.
        return {k: v for k, v in vars(self).items() if k != "_backprop"}

    @property
    def class_shares(self) -> NDArray[np.float64] | None:
        """ν_i: the share of each class in what each client holds; None without classes.

        Like :attr:`samples`, it counts what is held out for validation: links that depend on the
        data are the same with and without.
        """
        return self.data.class_shares

    @property
    def class_counts(self) -> NDArray[np.int64] | None:
        """How many samples of each class each client holds; None without classes."""
        if self.class_shares is None:
            return None
        return np.rint(self.class_shares * self.samples[:, None]).astype(np.int64)

    @property
    def samples(self) -> NDArray[np.int64]:
        """How many samples each client holds, those held out for validation included."""
        return self.data.held_samples

    @property
    def has_natural_clients(self) -> bool:
        """Whether clients bring their own samples, for training and for testing."""
        return self.data.test_counts is not None

    def test_description(self) -> dict[str, Any] | None:
        """Describe the test samples where it is known whose they are; else None.

        ``most_frequent`` is the accuracy of a model that always predicts the most frequent class.
        """
        return self._evaluator.test_description()

    def evaluate(self, model: Tensor) -> Evaluation:
        """Return loss and accuracy on the test samples and on a part of the training samples."""
        return self._evaluator.evaluate(model)

    def client_loss(self, client: int, model: Tensor) -> float:
        """Return a model's mean loss over the client's samples."""
        return self._evaluator.client_loss(client, model)

    def client_accuracies(self, model: Tensor) -> list[float | None]:
        """Return the expected accuracy on each client's own held-out samples.

        These are its test samples where it is known whose they are, as in data that clients bring
        themselves; else test samples in the proportions of the client's classes.
        """
        return self._evaluator.client_accuracies(model)

    def client_accuracy(self, client: int, model: Tensor) -> float | None:
        """Return the same for one client, for instance of its own model."""
        return self._evaluator.client_accuracy(client, model)

    def fingerprint(self) -> str:
        """Return a hash of all samples and of the partition."""
        return self.data.fingerprint()

    def client_fingerprint(self, client: int) -> str:
        """Return a hash of one client's samples."""
        return self.data.client_fingerprint(client)

    def init(self) -> Tensor:
        """Return x⁰, the module's initial value."""
        return self._initial.clone()

    def local_steps(
        self, client: int, start: Tensor, round: int, first_batch: int, correction: Tensor | None
    ) -> Tensor:
        """Return the client's model after one round's local steps."""
        return self.local_rounds(client, start, round, 1, first_batch, correction)

    def local_rounds(
        self,
        client: int,
        start: Tensor,
        first_round: int,
        rounds: int,
        first_batch: int,
        correction: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the client's model after several rounds; in between it stays in the module."""
        self._vector.fill(start.to(self.device))
        self.module.train()
        corrections = []
        if correction is not None:
            corrections = self._vector.corrections(correction.to(self.device))
        for k in range(rounds):
            batch = first_batch + k * self.training.local_steps
            self._train_round(client, self.training.rate(first_round + k), batch, corrections)
        if self.device.type != "cpu":
            end = self._vector.flatten().cpu()
            return end if out is None else out.copy_(end)
        return self._vector.flatten(out)

    def _train_round(
        self, client: int, rate: float, first_batch: int, corrections: list[Tensor]
    ) -> None:
        """Run a round's local steps on the module's parameters."""
        backprop = self._backprop
        batches = range(first_batch, first_batch + self.training.local_steps)
        is_random = backprop is None or backprop.is_random
        # Seeds dropout and the like, so that they too are a function of the batch.
        seed = integer_seed(self.seed, "module", client, first_batch) if is_random else None
        self._vector.count_batches(first_batch)
        with seeded(seed, self.device), repeatable(self.device):
            if backprop is not None and self.training.is_plain and not corrections:
                for k in batches:
                    inputs, labels = self.data.batch(client, k)
                    assert isinstance(inputs, Tensor)
                    backprop.sgd_step(inputs, labels, rate)
            else:
                step = self.training.begin(self._vector.parameters, rate, corrections)
                for k in batches:
                    step(self._gradients(*self.data.batch(client, k)))

    def _gradients(self, inputs: Inputs, labels: Tensor) -> Sequence[Tensor]:
        if self._backprop is not None and isinstance(inputs, Tensor):
            return self._backprop.gradients(inputs, labels)
        loss = self.loss(self._forward(inputs), labels)
        return torch.autograd.grad(loss, self._vector.parameters, materialize_grads=True)

    def batch_gradient(self, client: int, model: Tensor, batch: int) -> Tensor:
        """Return the gradient of the client's loss on one of its batches."""
        return self.gradient_and_statistics(client, model, batch)[0]

    def gradient_and_statistics(
        self, client: int, model: Tensor, batch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient on one batch, and the running statistics after it."""
        self._vector.fill(model.to(self.device))
        self._vector.count_batches(batch)
        self.module.train()
        seed = integer_seed(self.seed, "module", client, batch)
        with seeded(seed, self.device), repeatable(self.device):
            gradients = self._gradients(*self.data.batch(client, batch))
        return self._vector.shared(gradients).cpu(), self._vector.statistics().cpu()

    @cached_property
    def _backprop(self) -> ManualBackprop | None:
        is_classifier = self.loss is functional.cross_entropy and self.data.labels.dim() == 1
        # Written for a CPU, and measured only there.
        one_input = isinstance(self.data.inputs, Tensor)
        usable = is_classifier and self.device.type == "cpu" and one_input
        return manual_backprop(self.module) if usable else None

    def stack_advice(self) -> StackAdvice:
        """Return whether clients can be stacked, and whether it pays."""
        return self._stack.advice(self.module, self.loss)

    def stacked_local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> Tensor | None:
        """Run one round for many clients at once, in place; return which models are finite."""
        return self._stack.local_steps(clients, models, rounds, first_batches, correction)

    def gradients(self, model: Tensor, draw: int) -> Gradients:
        """Estimate from two batches of each of up to ten clients, drawn anew for each ``draw``."""
        self._vector.fill(model.to(self.device))
        self.module.train()
        random = generator(self.seed, "gradients", draw)
        count = min(self.clients, ESTIMATE_CLIENTS)
        clients = np.sort(random.choice(self.clients, count, replace=False)).tolist()

        def gradient(client: int, k: int) -> Tensor:
            part = self.parts[client]
            size = min(len(part), self.training.batch_size)
            samples = random.choice(part, size, replace=False)
            # Negative batch numbers: training never uses them.
            batch = self.data.take(samples, client, -1 - (2 * draw + k))
            return self._vector.shared(self._gradients(*batch))

        pairs = ((gradient(client, 0), gradient(client, 1)) for client in clients)
        seed = integer_seed(self.seed, "gradients", draw)
        with seeded(seed, self.device), repeatable(self.device):
            return Gradients.from_pairs(pairs, self.clients)
