"""Supervised learning: any module on any tensors, shared out over the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedpbc import defaults
from fedpbc.data import Augmentation, Batches, class_shares, dirichlet_partition
from fedpbc.errors import InputError, Verbatim
from fedpbc.randomness import generator, integer_seed
from fedpbc.tasks.dense_kernel import dense_steps, has_dense_steps
from fedpbc.tasks.device import find_device, refuse_double, repeatable, seeded
from fedpbc.tasks.gradient_estimate import gradients_from_pairs
from fedpbc.tasks.layout import Layout, layout_of, parameters_of
from fedpbc.tasks.local_training import LocalTraining
from fedpbc.tasks.manual_backprop import Chain, chain_of
from fedpbc.tasks.stacked_training import DenseStack, StackAdvice, advise, on_all_cores
from fedpbc.tasks.task import Evaluation, Gradients
from fedpbc.tasks.user_data import (
    Partition,
    Samples,
    as_tensors,
    checked_partition,
    refuse_running_statistics,
)

__all__ = ["Supervised"]

Loss = Callable[[Tensor, Tensor], Tensor]

EVALUATION_CHUNK = 100
"""How many samples are judged at once; fixed, so that the sums have the same bits everywhere."""
STACK_BYTES = 2**22
"""How much of a stack is worked on at once; best measured with a shared cache of 32 MB."""
ASKED_CLIENTS = 10
"""How many clients' gradients are looked at; more would cost more of a run than the bound that they
are for is worth."""
GPU_ROWS = 128
"""How many rows a GPU works on at once, always: how it adds up depends on how many there are."""


class Supervised:
    """A module, its data, and how the data is shared out.

    Labels that are whole numbers are classes: they are partitioned by Dirichlet(alpha) in equal
    volumes, and accuracy is judged. Other labels (a regression, say) are shared out at random and
    need a ``loss``. Give ``partition`` (one array of indices a client) to share out otherwise.

    The module is used for every client in turn; x⁰ is what it holds when given. Parameters that
    ask for no gradient stay as they are.

    Module and samples are put on ``device``, and training and judging happen there; models come and
    go as vectors on the CPU.

    Attributes:
        parts: the indices of each client's samples.
        device: where the work is done.

    Example:
        >>> x, y = torch.randn(200, 5), torch.arange(200) % 3
        >>> task = Supervised(nn.Linear(5, 3), (x, y), (x, y), clients=10)
        >>> task.class_shares.shape
        (10, 3)
    """

    def __init__(
        self,
        module: nn.Module,
        train: Samples,
        test: Samples,
        *,
        clients: int = defaults.CLIENTS,
        alpha: float = defaults.ALPHA,
        partition: Partition | None = None,
        loss: Loss = functional.cross_entropy,
        training: LocalTraining | None = None,
        seed: int = 0,
        crop_padding: int = 0,
        flip: bool = False,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
        train_samples: int = defaults.TRAIN_SAMPLES,
        device: str | torch.device = "cpu",
    ) -> None:
        """Set up the task.

        Args:
            module: any module without running statistics (BatchNorm); GroupNorm is fine.
            train: inputs and labels.
            test: the same.
            clients: m.
            alpha: of the Dirichlet partition; small is heterogeneous.
            partition: indices into ``train``, one array a client, instead of a drawn one.
            loss: of a batch's outputs and labels, the mean over the batch.
            training: the local steps.
            seed: of the partition, the batches and whatever is random in the module.
            crop_padding: random crops of [N, H, W, C] pictures after so much padding, one a batch.
            flip: random horizontal flips of such pictures, one a batch.
            normalise: the channels' means and deviations; given, inputs are [N, H, W, C] pictures,
                and the module sees [B, C, H, W].
            train_samples: how many of the training samples an evaluation judges; 0: all.
            device: cpu, cuda, cuda:1, … or mps. Module and all samples are moved there.
        """
        self.device = find_device(device)
        refuse_running_statistics(module)
        self.training = training or LocalTraining()
        self.loss = loss
        self.seed = seed
        self.layout: Layout = layout_of(module)
        if not self.layout.names:
            raise InputError("module", Verbatim("without parameters"), "one that can be trained")

        # Prepared on the CPU, whatever the device: the same samples to the bit.
        self.inputs, self.labels = as_tensors(train, "train")
        self.test_inputs, self.test_labels = as_tensors(test, "test")
        self.has_classes = not self.labels.is_floating_point()
        if self.test_labels.is_floating_point() == self.has_classes:
            given = Verbatim(f"of types {self.labels.dtype} and {self.test_labels.dtype}")
            raise InputError("train and test labels", given, "of one kind")
        if loss is functional.cross_entropy and not self.has_classes:
            given = Verbatim(f"of type {self.labels.dtype}")
            raise InputError("labels", given, "whole numbers, or come with loss=…")
        self.classes = 0
        if self.has_classes:
            self.classes = max(int(self.labels.max()), int(self.test_labels.max())) + 1

        if partition is None:
            self.parts = self._share_out(clients, alpha)
        else:
            self.parts = checked_partition(partition, len(self.labels))
        self.clients = len(self.parts)
        sizes = [len(part) for part in self.parts]
        self.batches = Batches(seed, sizes, self.training.batch_size)
        self.augmentation = Augmentation(seed, crop_padding, flip)

        self._normalise: tuple[Tensor, Tensor] | None = None
        if normalise is not None:
            width = self.inputs.shape[2]
            means, deviations = (
                torch.tensor(v, dtype=torch.float32, device="cpu") for v in normalise
            )
            # One number for each of a row's values: quicker than spreading three over them.
            self._normalise = means.repeat(width), deviations.repeat(width)
            if not crop_padding and not flip and self.inputs.numel() < 2**27:
                # Without augmentation the prepared inputs are always the same: make them once.
                self.inputs = self._prepare(self.inputs)
                self.test_inputs = self._prepare(self.test_inputs)
                self._normalise = None
        used = np.sort(np.concatenate(self.parts))
        count = min(train_samples, len(used)) if train_samples else len(used)
        self._judged = torch.from_numpy(used[np.linspace(0, len(used) - 1, count).astype(int)])
        self._to_device(module)
        self._try_module()

    def _to_device(self, module: nn.Module) -> None:
        samples = self.inputs, self.labels, self.test_inputs, self.test_labels
        refuse_double(
            self.device, [t.dtype for t in (*module.parameters(), *module.buffers(), *samples)]
        )
        self.inputs, self.labels, self.test_inputs, self.test_labels = (
            part.to(self.device) for part in samples
        )
        self._judged = self._judged.to(self.device)
        if self._normalise is not None:
            means, deviations = self._normalise
            self._normalise = means.to(self.device), deviations.to(self.device)
        self.module = module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = parameters_of(self.module)
        self._initial = self.layout.flatten(self._parameters).cpu()

    def __getstate__(self) -> dict[str, Any]:
        # A chain works on the module's own parameters, and its copy would not: made anew there.
        return {k: v for k, v in vars(self).items() if k not in {"_chain", "_stack", "_rows"}}

    def _try_module(self) -> None:
        """Find out now whether the module takes the inputs and tells all classes apart."""
        self.module.eval()
        try:
            with torch.no_grad():
                outputs = self.module(self._prepare(self.inputs[:2]))
        except Exception as error:
            reason = shorten(f"{type(error).__name__}: {error}", 150, placeholder=" …")
            shape = tuple(self.inputs.shape[1:])
            right = f"one that takes inputs of shape {shape} ({reason})"
            raise InputError("module", type(self.module).__name__, right) from error
        wanted = self.classes if self.loss is functional.cross_entropy else 0
        if wanted and (outputs.dim() < 2 or outputs.shape[1] < wanted):
            given = Verbatim(f"with outputs of shape {tuple(outputs.shape)}")
            raise InputError("module", given, f"one with an output for each of {wanted} classes")

    def _share_out(self, clients: int, alpha: float) -> list[NDArray[np.int64]]:
        if clients < 1:
            raise InputError("clients", clients, "at least 1")
        labels = self.labels.numpy()
        if self.has_classes and labels.ndim == 1:
            return list(dirichlet_partition(labels, clients, alpha, self.seed, self.classes))
        if len(labels) < clients:
            raise InputError("clients", clients, f"at most the {len(labels)} training samples")
        order = generator(self.seed, "partition").permutation(len(labels))
        return list(order[: len(order) // clients * clients].reshape(clients, -1))

    @cached_property
    def class_shares(self) -> NDArray[np.float64] | None:
        """ν_i: how each client's samples fall into classes; None if labels are no classes."""
        if not self.has_classes or self.labels.dim() != 1:
            return None
        return class_shares(self.labels.cpu().numpy(), self.parts, self.classes)

    @property
    def class_counts(self) -> NDArray[np.int64] | None:
        """How many samples of each class each client holds; None if labels are no classes."""
        if self.class_shares is None:
            return None
        return np.rint(self.class_shares * self.samples[:, None]).astype(np.int64)

    @property
    def samples(self) -> NDArray[np.int64]:
        """How many samples each client holds."""
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def fingerprint(self) -> str:
        """A hash of all samples and of who holds which."""
        digest = sha256()
        for part in (self.inputs, self.labels, self.test_inputs, self.test_labels):
            digest.update(np.ascontiguousarray(part.cpu().numpy()).tobytes())
        for indices in self.parts:
            digest.update(indices.tobytes())
        return digest.hexdigest()

    def init(self) -> Tensor:
        """x⁰: what the module held when it was given."""
        return self._initial.clone()

    def _prepare(self, inputs: Tensor) -> Tensor:
        """Inputs as the module sees them."""
        if self._normalise is None:
            return inputs
        means, deviations = self._normalise
        rows = inputs.to(torch.float32, copy=True).flatten(2)
        # The channels stand last in memory, which is how convolutions run best on a CPU.
        return rows.sub_(means).div_(deviations).view(inputs.shape).permute(0, 3, 1, 2)

    def batch(self, client: int, k: int) -> tuple[Tensor, Tensor]:
        """The client's k-th batch, augmented, as the module sees it."""
        own = self.parts[client][self.batches.positions(client, k)]
        index = torch.from_numpy(own).to(self.device)
        inputs = self.augmentation.apply(self.inputs[index], client, k)
        return self._prepare(inputs), self.labels[index]

    def local_steps(
        self, client: int, start: Tensor, round: int, first_batch: int, correction: Tensor | None
    ) -> Tensor:
        """The client's model after one round's local steps."""
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
        """The client's model after several rounds; in between it stays in the module."""
        self.layout.fill(self._parameters, start.to(self.device))
        self.module.train()
        terms = [] if correction is None else self.layout.parts(correction.to(self.device))
        for k in range(rounds):
            batch = first_batch + k * self.training.local_steps
            self._one_round(client, self.training.rate(first_round + k), batch, terms)
        if self.device.type != "cpu":
            end = self.layout.flatten(self._parameters).cpu()
            return end if out is None else out.copy_(end)
        return self.layout.flatten(self._parameters, out)

    def _one_round(self, client: int, rate: float, first_batch: int, terms: list[Tensor]) -> None:
        """A round's local steps with what is in the module, ``terms`` added to every gradient."""
        chain = self._chain
        batches = range(first_batch, first_batch + self.training.local_steps)
        random = chain is None or chain.random
        # Dropout and the like draw from here, so that they are a function of the batch too.
        seed = integer_seed(self.seed, "module", client, first_batch) if random else None
        with seeded(seed, self.device), repeatable(self.device):
            if chain is not None and self.training.is_plain and not terms:
                for k in batches:
                    chain.descend(*self.batch(client, k), rate)
            else:
                step = self.training.begin(self._parameters, rate, terms)
                for k in batches:
                    step(self._gradients(*self.batch(client, k)))

    def _gradients(self, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        if self._chain is not None:
            return self._chain.gradients(inputs, labels)
        loss = self.loss(self.module(inputs), labels)
        return torch.autograd.grad(loss, self._parameters, materialize_grads=True)

    @cached_property
    def _chain(self) -> Chain | None:
        classes = self.loss is functional.cross_entropy and self.labels.dim() == 1
        # Written for a CPU, and measured only there.
        return chain_of(self.module) if classes and self.device.type == "cpu" else None

    def stack_advice(self) -> StackAdvice:
        """Whether clients can be stacked, and whether it pays."""
        small = min(len(part) for part in self.parts)
        if small < self.training.batch_size:
            return StackAdvice(False, False, f"a client has {small} samples, less than a batch")
        return advise(self.module, self.loss)

    @cached_property
    def _stack(self) -> DenseStack:
        at_least = 2 if self.device.type == "cpu" else GPU_ROWS
        return DenseStack(self.layout, self.training, at_least)

    def stacked_local_steps(
        self,
        clients: Sequence[int],
        models: Tensor,
        rounds: Sequence[int],
        first_batches: Sequence[int],
        correction: Tensor | None,
    ) -> None:
        """One round for many clients at once, in place."""
        self.module.train()
        each = [self.training.rate(t) for t in rounds]
        rates = torch.tensor(each, dtype=models.dtype, device=models.device)

        compiled = self._can_be_compiled(models) and correction is None

        def advance(rows: slice) -> None:
            if compiled:
                index = self._taken(clients[rows], first_batches[rows])
                widths = [self._rows.shape[1], *(shape[0] for shape in self.layout.shapes[::2])]
                dense_steps(models[rows], widths, self._rows, self.labels, index, rates[rows])
                return
            batches = self._stacked_batches(clients[rows], first_batches[rows])
            own = None if correction is None else correction[rows]
            self._stack.local_steps(models[rows], batches, rates[rows], own)

        if self.device.type == "cpu":
            # A few rows at a time: their models stay in the cache for all the steps of the round.
            few = STACK_BYTES // (models.element_size() * models.shape[1])
            on_all_cores(advance, len(clients), few)
        else:
            for k in range(0, len(clients), GPU_ROWS):
                advance(slice(k, k + GPU_ROWS))

    def _can_be_compiled(self, models: Tensor) -> bool:
        """Whether the compiled steps do what is wanted here."""
        return (
            has_dense_steps()
            and self.device.type == "cpu"
            and self.training.is_plain
            and models.dtype == self.inputs.dtype == torch.float32
            and self._normalise is None
            and not self.augmentation.padding
            and not self.augmentation.flip
        )

    def _taken(self, clients: Sequence[int], first_batches: Sequence[int]) -> Tensor:
        """Which samples each client takes in which step of a round, [n, s, B]."""
        steps, pairs = self.training.local_steps, zip(clients, first_batches, strict=True)
        each = [self.parts[c][self.batches.span(c, k, steps)] for c, k in pairs]
        return torch.from_numpy(np.stack(each))

    @cached_property
    def _rows(self) -> Tensor:
        """The inputs as dense layers see them."""
        return self.inputs.flatten(1).contiguous()

    def _stacked_batches(
        self, clients: Sequence[int], first_batches: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        pairs = list(zip(clients, first_batches, strict=True))
        # One row a step, with everybody's samples: gathered at once.
        indices = self._taken(clients, first_batches).to(self.device).transpose(0, 1).flatten(1)
        stack = len(clients), indices.shape[1] // len(clients)
        augmented = self.augmentation.padding or self.augmentation.flip
        for step, index in enumerate(indices):
            labels = self.labels[index]
            if augmented or self._normalise is not None:
                own = self.inputs[index].chunk(len(clients))
                turned = [
                    self.augmentation.apply(inputs, c, k + step)
                    for inputs, (c, k) in zip(own, pairs, strict=True)
                ]
                inputs = self._prepare(torch.cat(turned)).flatten(1)
            else:
                inputs = self._rows.index_select(0, index)
            yield inputs.view(*stack, -1), labels.view(*stack, *labels.shape[1:])

    def evaluate(self, model: Tensor) -> Evaluation:
        """Loss and accuracy on the test samples and on a part of the training samples."""
        self.layout.fill(self._parameters, model.to(self.device))
        self.module.eval()
        with repeatable(self.device):
            test_loss, hits = self._judge(self.test_inputs, self.test_labels)
            train_loss, train_hits = self._judge(self.inputs, self.labels, self._judged)
        if hits is None or train_hits is None:
            return Evaluation(test_loss=test_loss, train_loss=train_loss)
        per_class = None
        if self.test_labels.dim() == 1:
            labels = self.test_labels.cpu()
            count = torch.bincount(labels, minlength=self.classes)
            right = torch.bincount(labels[hits], minlength=self.classes)
            # A class that the test samples lack has no accuracy: 0 would be a claim.
            per_class = [
                r / n if n else None for r, n in zip(right.tolist(), count.tolist(), strict=True)
            ]
        return Evaluation(
            test_loss=test_loss,
            train_loss=train_loss,
            test_accuracy=float(hits.double().mean()),
            train_accuracy=float(train_hits.double().mean()),
            per_class=per_class,
        )

    @torch.no_grad()
    def _judge(
        self, inputs: Tensor, labels: Tensor, index: Tensor | None = None
    ) -> tuple[float, Tensor | None]:
        """The mean loss, and which samples were right."""
        losses, sizes, hits = [], [], []
        everything = torch.arange(len(labels), device=self.device) if index is None else index
        for chunk in everything.split(EVALUATION_CHUNK):  # type: ignore[no-untyped-call]
            outputs, wanted = self.module(self._prepare(inputs[chunk])), labels[chunk]
            losses.append(self.loss(outputs, wanted))
            sizes.append(len(chunk))
            if self.has_classes and outputs.dim() == wanted.dim() + 1:
                hits.append(outputs.argmax(dim=1) == wanted)
        # Read at the end: every look at a GPU's numbers waits for it.
        found = torch.stack(losses).flatten().tolist()
        total = 0.0
        for loss, size in zip(
            found, sizes, strict=True
        ):  # sum() adds otherwise from Python 3.12 on
            total += loss * size
        return total / len(everything), torch.cat(hits).cpu() if hits else None

    def gradients(self, model: Tensor, draw: int) -> Gradients:
        """Estimated from two batches each of up to ten clients, drawn anew each time."""
        self.layout.fill(self._parameters, model.to(self.device))
        self.module.train()
        random = generator(self.seed, "gradients", draw)
        count = min(self.clients, ASKED_CLIENTS)
        asked = np.sort(random.choice(self.clients, count, replace=False)).tolist()

        def gradient(client: int, k: int) -> Tensor:
            own = self.parts[client]
            size = min(len(own), self.training.batch_size)
            index = torch.from_numpy(random.choice(own, size, replace=False)).to(self.device)
            # Training never has a batch of a number below 0.
            inputs = self.augmentation.apply(self.inputs[index], client, -1 - (2 * draw + k))
            return self.layout.flatten(self._gradients(self._prepare(inputs), self.labels[index]))

        pairs = ((gradient(client, 0), gradient(client, 1)) for client in asked)
        seed = integer_seed(self.seed, "gradients", draw)
        with seeded(seed, self.device), repeatable(self.device):
            return gradients_from_pairs(pairs, self.clients)
