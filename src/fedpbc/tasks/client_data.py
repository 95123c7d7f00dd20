"""The samples of a supervised task: their partition over the clients, and the clients' batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc import defaults
from fedpbc.data import Augmentation, Batches, class_shares, dirichlet_partition, hold_out
from fedpbc.errors import InputError
from fedpbc.limits import array_of
from fedpbc.randomness import generator
from fedpbc.tasks.inputs import Inputs, TensorGroup, rows_of, tensors_in
from fedpbc.tasks.losses import LabelKind
from fedpbc.tasks.user_data import Partition, Samples, as_tensors, checked_partition

__all__ = ["ClientData", "evenly"]


class ClientData:
    """Training and test samples, which client holds which, and what a module sees of them.

    The arguments are those of :class:`~fedpbc.tasks.supervised.Supervised`. ``classes`` is 0 if
    labels are not integers; ``evaluated`` are the training samples that an evaluation uses. With
    ``validation``, the test samples are not used: a part of each client's own stands for them.
    """

    def __init__(
        self,
        train: Samples,
        test: Samples,
        *,
        clients: int | None,
        alpha: float | None,
        partition: Partition | None,
        seed: int,
        batch_size: int,
        augmentation: Augmentation,
        normalise: tuple[Sequence[float], Sequence[float]] | None,
        train_samples: int,
        validation: float = 0.0,
        test_clients: NDArray[np.int64] | None = None,
        label_kind: LabelKind = "any",
    ) -> None:
        # Prepared on the CPU, whatever the device: the same samples to the bit.
        self.inputs, self.labels = as_tensors(train, "train", label_kind)
        # Of the test samples nothing may be known to who tunes, not even their labels.
        self.test_inputs, self.test_labels = (
            (self.inputs, self.labels) if validation else as_tensors(test, "test", label_kind)
        )
        _check_alike(self.inputs, self.test_inputs)
        if augmentation.is_used and not isinstance(self.inputs, Tensor):
            raise InputError("train has several inputs, but crop_padding and flip are for images")
        self.has_classes = not self.labels.is_floating_point()
        if self.test_labels.is_floating_point() == self.has_classes:
            raise InputError(
                f"train and test labels are {self.labels.dtype} and {self.test_labels.dtype}, "
                "but should be both integers or both floating-point numbers"
            )
        self.classes = 0
        if self.has_classes:
            self.classes = max(int(self.labels.max()), int(self.test_labels.max())) + 1
        if partition is None:
            self.parts: Sequence[NDArray[np.int64]] = self._draw_partition(clients, alpha, seed)
        else:
            self.parts = checked_partition(partition, len(self.labels))
            if clients not in (None, len(self.parts)):
                raise InputError(
                    f"clients is {clients}, but partition has {len(self.parts)} arrays, one for "
                    "each client: leave clients out"
                )
            if alpha is not None:
                raise InputError(
                    f"alpha is {alpha:g}, but partition says which samples each client holds: "
                    "leave one of them out"
                )
        # What clients hold decides on their links, which must not depend on what is held out.
        self._held_parts = self.parts
        self.held_samples = np.array([len(part) for part in self.parts])
        if validation and test_clients is not None:
            owners = np.zeros(len(self.labels), dtype=np.int64)
            for client, part in enumerate(self.parts):
                owners[part] = client
        if validation:
            self.parts, held_out = hold_out(self.parts, validation, seed)
            self.test_inputs, self.test_labels = self.inputs[held_out], self.labels[held_out]
            if test_clients is not None:
                test_clients = owners[held_out]
        self.test_counts: NDArray[np.int64] | None = None
        if test_clients is not None:
            self._sort_test(test_clients)
        self.batches = Batches(seed, [len(part) for part in self.parts], batch_size)
        self.augmentation = augmentation
        self._normalise: tuple[Tensor, Tensor] | None = None
        if normalise is not None:
            pictures = self._check_normalise(normalise)
            width = pictures.shape[2]
            means, deviations = (
                torch.tensor(v, dtype=torch.float32, device="cpu") for v in normalise
            )
            # Repeated for each value of an image row: faster than broadcasting three values.
            self._normalise = means.repeat(width), deviations.repeat(width)
            if not augmentation.is_used and pictures.numel() < 2**27:
                # Without augmentation the prepared inputs never change: compute them once.
                self.inputs = self.prepare(self.inputs)
                self.test_inputs = self.prepare(self.test_inputs)
                self._normalise = None
        used = np.sort(np.concatenate(self.parts))
        self.evaluated = torch.from_numpy(evenly(used, train_samples or len(used)))

    def _sort_test(self, owners: NDArray[np.int64]) -> None:
        """Sort the test samples by the client whose they are, and count those of each."""
        owners = array_of("test_clients", owners)
        clients, samples = len(self.parts), len(self.test_labels)
        if owners.shape != (samples,) or owners.dtype.kind not in "iu":
            raise InputError(
                f"test_clients is {owners.dtype} of shape {owners.shape}, "
                f"but should be a client's number for each of {samples} test samples"
            )
        if owners.min() < 0 or owners.max() >= clients:
            outside = int(owners.max() if owners.max() >= clients else owners.min())
            raise InputError(
                f"test_clients has the client {outside}, but should be from 0 to {clients - 1}"
            )
        order = torch.from_numpy(np.argsort(owners, kind="stable"))
        self.test_inputs, self.test_labels = self.test_inputs[order], self.test_labels[order]
        self.test_counts = np.bincount(owners, minlength=clients)

    def test_samples_of(self, client: int) -> Tensor:
        """The indices of a client's test samples; only where it is known whose they are."""
        assert self.test_counts is not None
        last = int(self._test_ends[client])
        first = last - int(self.test_counts[client])
        return torch.arange(first, last, device=self.test_labels.device)

    @cached_property
    def _test_ends(self) -> NDArray[np.int64]:
        assert self.test_counts is not None
        return np.cumsum(self.test_counts)

    def _check_normalise(self, normalise: tuple[Sequence[float], Sequence[float]]) -> Tensor:
        """Return the training inputs, if they are images."""
        for name, inputs in (("train", self.inputs), ("test", self.test_inputs)):
            if not isinstance(inputs, Tensor):
                raise InputError(f"{name} has several inputs, but normalise is for images")
            if inputs.dim() != 4:
                raise InputError(
                    f"{name} has inputs of shape {tuple(inputs.shape)}, but should have images "
                    "[N, H, W, C] with normalise"
                )
        assert isinstance(self.inputs, Tensor)
        channels = self.inputs.shape[3]
        expected = f"means and deviations above 0, {channels} of each, one per channel"
        values = array_of("normalise", normalise)
        if values.shape != (2, channels) or not (values[1] > 0).all():
            raise InputError("normalise", normalise, expected)
        return self.inputs

    def _draw_partition(
        self, clients: int | None, alpha: float | None, seed: int
    ) -> list[NDArray[np.int64]]:
        clients = defaults.CLIENTS if clients is None else clients
        labels = self.labels.numpy()
        if self.has_classes and labels.ndim == 1:
            alpha = defaults.ALPHA if alpha is None else alpha
            return list(dirichlet_partition(labels, clients, alpha, seed, self.classes))
        if alpha is not None:
            raise InputError(
                f"alpha is {alpha:g}, but these labels are not one class per sample, and so the "
                "samples are split at random: leave it out"
            )
        if len(labels) < clients:
            raise InputError("clients", clients, f"at most the {len(labels)} training samples")
        order = generator(seed, "partition").permutation(len(labels))
        return list(order[: len(order) // clients * clients].reshape(clients, -1))

    def __getstate__(self) -> dict[str, Any]:
        derived = ("flat_inputs", "_test_ends", "_joined_parts")
        return {k: v for k, v in vars(self).items() if k not in derived}

    @property
    def arrays(self) -> list[Tensor]:
        """The inputs and labels of both splits."""
        train, test = tensors_in(self.inputs), tensors_in(self.test_inputs)
        return [*train, self.labels, *test, self.test_labels]

    @property
    def is_raw(self) -> bool:
        """Whether the module sees the inputs unchanged."""
        return not self.augmentation.is_used and self._normalise is None

    def add_labels(self) -> None:
        """Make the labels one of the inputs: a module with a loss of its own takes them."""
        for name in ("inputs", "test_inputs"):
            inputs = getattr(self, name)
            if not isinstance(inputs, TensorGroup) or not inputs.named:
                raise InputError(
                    "loss", "model", 'given with inputs by name, such as {"input_ids": …}'
                )
            labels = self.labels if name == "inputs" else self.test_labels
            setattr(self, name, TensorGroup({**inputs.tensors, "labels": labels}))

    def convert_inputs(self, dtype: torch.dtype) -> None:
        """Convert the inputs of both splits to another precision."""
        self.inputs, self.test_inputs = self.inputs.to(dtype), self.test_inputs.to(dtype)

    def convert_labels(self, dtype: torch.dtype) -> None:
        """Convert the labels of both splits to another precision."""
        self.labels, self.test_labels = self.labels.to(dtype), self.test_labels.to(dtype)

    def move_to(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        self.inputs, self.test_inputs = self.inputs.to(device), self.test_inputs.to(device)
        self.labels, self.test_labels = self.labels.to(device), self.test_labels.to(device)
        self.evaluated = self.evaluated.to(device)
        if self._normalise is not None:
            means, deviations = self._normalise
            self._normalise = means.to(device), deviations.to(device)

    @cached_property
    def class_shares(self) -> NDArray[np.float64] | None:
        """ν_i: the share of each class in what each client holds; None without classes.

        Samples that are held out for validation are counted.
        """
        if not self.has_classes or self.labels.dim() != 1:
            return None
        return class_shares(self.labels.cpu().numpy(), self._held_parts, self.classes)

    @cached_property
    def client_strata(self) -> NDArray[np.float64]:
        """What a client's own test samples are like: its classes, or one kind for all."""
        shares = self.class_shares
        return np.ones((len(self.parts), 1)) if shares is None else shares

    @cached_property
    def test_strata(self) -> NDArray[np.int64]:
        """The kind of each test sample, of those in :attr:`client_strata`."""
        if self.class_shares is None:
            return np.zeros(len(self.test_labels), dtype=np.int64)
        return self.test_labels.cpu().numpy().astype(np.int64)

    @property
    def sample_count(self) -> int:
        """How many different samples the clients train on."""
        return len(np.unique(np.concatenate(self.parts)))

    def samples_of(self, client: int) -> tuple[Inputs, Tensor]:
        """Return the samples that a client trains on, without augmentation."""
        part = torch.from_numpy(np.asarray(self.parts[client])).to(self.labels.device)
        return self.inputs[part], self.labels[part]

    def client_fingerprint(self, client: int) -> str:
        """A hash of one client's samples."""
        inputs, labels = self.samples_of(client)
        return self.hash_of([*tensors_in(inputs), labels])

    @staticmethod
    def hash_of(tensors: Iterable[Tensor]) -> str:
        """A hash of some tensors."""
        digest = sha256()
        for values in tensors:
            array = values.cpu().contiguous()
            digest.update(f"{array.dtype} {tuple(array.shape)}\n".encode())
            digest.update(array.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return a hash of all samples and of the partition."""
        digest = sha256()
        for array in self.arrays:
            digest.update(np.ascontiguousarray(array.cpu().numpy()).tobytes())
        for indices in self.parts:
            digest.update(indices.tobytes())
        return digest.hexdigest()

    def prepare(self, inputs: Inputs, batches: Sequence[tuple[int, int]] = ()) -> Inputs:
        """Return inputs as the module sees them: normalised.

        If they are those of training ``batches``, equal parts of (client, k), they are augmented,
        too. Crops are padded with the mean colour, as if after normalising.
        """
        if not isinstance(inputs, Tensor):
            return inputs
        augmented = self.augmentation.is_used and len(batches) > 0
        if augmented:
            # Before normalising there are fewer bytes to move.
            parts = zip(inputs.chunk(len(batches)), batches, strict=True)
            changed = [self.augmentation.apply(part, *batch) for part, batch in parts]
            inputs = changed[0] if len(changed) == 1 else torch.cat(changed)
        if self._normalise is None:
            return inputs
        means, deviations = self._normalise
        rows = inputs.to(torch.float32, copy=True).flatten(2)
        pictures = rows.sub_(means).div_(deviations).view(inputs.shape)
        if augmented:
            for part, batch in zip(pictures.chunk(len(batches)), batches, strict=True):
                self.augmentation.clear_border(part, *batch)
        # Channels-last memory format, in which convolutions are fastest on a CPU.
        return pictures.permute(0, 3, 1, 2)

    def batch(self, client: int, k: int) -> tuple[Inputs, Tensor]:
        """Return the client's k-th batch, augmented, as the module sees it."""
        return self.take(self.parts[client][self.batches.positions(client, k)], client, k)

    def take(self, samples: NDArray[np.int64], client: int, k: int) -> tuple[Inputs, Tensor]:
        """Return training samples, augmented as those of the client's k-th batch."""
        index = torch.from_numpy(samples).to(self.labels.device)
        return self.prepare(rows_of(self.inputs, index), [(client, k)]), self.labels[index]

    @cached_property
    def flat_inputs(self) -> Tensor:
        """The training inputs as dense layers see them, one row per sample."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs.flatten(1).contiguous()

    @cached_property
    def _joined_parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples of all clients, one after another, and where those of each begin."""
        counts = [len(part) for part in self.parts]
        return np.concatenate(self.parts), np.cumsum([0, *counts[:-1]])

    def batch_indices(
        self, clients: Sequence[int], first_batches: Sequence[int], steps: int
    ) -> Tensor:
        """Return the sample indices of each client's batches, [n, steps, B]."""
        samples, firsts = self._joined_parts
        positions = self.batches.spans(clients, first_batches, steps)
        positions += firsts[np.asarray(clients, dtype=np.int64), None, None]
        return torch.from_numpy(np.take(samples, positions))

    def gather(
        self, clients: Sequence[int], first_batches: Sequence[int], steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return samples as dense layers see them, their labels, and the batches' indices."""
        index = self.batch_indices(clients, first_batches, steps)
        return self.flat_inputs, self.labels, index

    def stacked_batches(
        self, clients: Sequence[int], first_batches: Sequence[int], steps: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, step by step, the batches of all these clients as [n, B, …]."""
        pairs = list(zip(clients, first_batches, strict=True))
        if self.is_raw:
            samples, all_labels, indices = self.gather(clients, first_batches, steps)
        else:
            all_labels, indices = self.labels, self.batch_indices(clients, first_batches, steps)
        # One row per step, with the samples of all clients: gathered at once.
        indices = indices.to(self.labels.device).transpose(0, 1).flatten(1)
        stack = len(clients), indices.shape[1] // len(clients)
        for step, index in enumerate(indices):
            labels = all_labels[index]
            if self.is_raw:
                inputs = samples.index_select(0, index)
            else:
                batches = [(client, k + step) for client, k in pairs]
                prepared = self.prepare(rows_of(self.inputs, index), batches)
                assert isinstance(prepared, Tensor)
                inputs = prepared.flatten(1)
            yield inputs.view(*stack, -1), labels.view(*stack, *labels.shape[1:])


def evenly(samples: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most ``count`` of these samples, from the first to the last.

    Example:
        >>> evenly(np.array([3, 5, 7, 8, 9]), 3).tolist()
        [3, 7, 9]
    """
    if count >= len(samples):
        return samples
    places = np.linspace(0, len(samples) - 1, count).astype(np.int64)
    return np.take(samples, places)


def _check_alike(train: Inputs, test: Inputs) -> None:
    """Raise InputError unless both splits have the same inputs."""
    names = [
        list(each.tensors) if isinstance(each, TensorGroup) else None for each in (train, test)
    ]
    if names[0] != names[1]:
        given, other = ("one input" if each is None else ", ".join(each) for each in names)
        raise InputError(f"train has {given}, but test has {other}: they should be alike")
