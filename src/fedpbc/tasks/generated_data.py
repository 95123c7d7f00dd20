"""The samples of a supervised task that are generated for each client when it needs them.

Only what evaluations use is in memory: samples of some clients, evenly spread over all. So memory
does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpbc import defaults
from fedpbc.data import Batches
from fedpbc.data.synthetic import SampleGenerator
from fedpbc.data.validation import held_out_count
from fedpbc.errors import InputError
from fedpbc.tasks.client_data import ClientData, evenly
from fedpbc.tasks.inputs import Inputs

__all__ = ["GeneratedData", "client_data_of"]

EVALUATED_CLIENTS = 100
"""Clients whose samples evaluations use, if there are more."""
TEST_SAMPLES = 20
"""Test samples of each of them."""
CACHED_BYTES = 2**26
"""Generated samples that are kept: a client often needs the same ones again in the next round."""


class GeneratedParts(Sequence[NDArray[np.int64]]):
    """The samples' numbers of each client, consecutive: a partition that takes no memory."""

    def __init__(self, clients: int, samples: int) -> None:
        self._clients, self._samples = clients, samples

    def __len__(self) -> int:
        return self._clients

    def __getitem__(self, client: Any) -> Any:
        if not -self._clients <= client < self._clients:
            raise IndexError(client)
        return np.arange(self._samples) + client % self._clients * self._samples


class GeneratedData(ClientData):
    """Samples of any number of clients, each a pure function of the seed and the client.

    ``inputs`` and ``labels`` are those training samples that evaluations use.
    """

    def __init__(
        self,
        generator: SampleGenerator,
        *,
        clients: int,
        seed: int,
        batch_size: int,
        train_samples: int,
        validation: float,
        **others: Any,
    ) -> None:
        held_out = held_out_count(generator.samples, validation)
        self._generator, self._seed = generator, seed
        self._samples = generator.samples - held_out
        chosen = evenly(np.arange(clients), EVALUATED_CLIENTS)
        count = self._samples
        if train_samples:
            count = min(count, -(-train_samples // len(chosen)))
        drawn = [generator.train(seed, client) for client in chosen.tolist()]
        if held_out:
            # The last ones: a client's samples are independent of each other.
            tested = [(x[self._samples :], y[self._samples :]) for x, y in drawn]
        else:
            tested = [generator.test(seed, client, TEST_SAMPLES) for client in chosen.tolist()]
        train, test = (
            tuple(np.concatenate(each) for each in zip(*part, strict=True))
            for part in ([(x[:count], y[:count]) for x, y in drawn], tested)
        )
        super().__init__(
            train,
            test,
            clients=len(chosen),
            partition=GeneratedParts(len(chosen), count),
            seed=seed,
            batch_size=batch_size,
            train_samples=train_samples,
            test_clients=np.repeat(np.arange(len(chosen)), [len(y) for _, y in tested]),
            **others,
        )
        # Not every class need be among the samples in memory.
        self.classes = generator.classes
        test_counts = np.zeros(clients, dtype=np.int64)
        test_counts[chosen] = [len(y) for _, y in tested]
        self.test_counts = test_counts
        self.held_samples = np.full(clients, generator.samples)
        self.parts = GeneratedParts(clients, self._samples)
        self.batches = Batches(seed, np.full(clients, self._samples), batch_size)
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cache": {}}

    @property
    def class_shares(self) -> None:
        """None: all samples of all clients would have to be generated."""

    @property
    def sample_count(self) -> int:
        """How many samples the clients train on."""
        return len(self.parts) * self._samples

    def samples_of(self, client: int) -> tuple[Tensor, Tensor]:
        """Generate the samples that a client trains on."""
        cached = self._cache.get(client)
        if cached is not None:
            return cached
        assert isinstance(self.inputs, Tensor)
        inputs, labels = self._generator.train(self._seed, client)
        samples = (
            torch.from_numpy(inputs[: self._samples]).to(self.labels.device, self.inputs.dtype),
            torch.from_numpy(labels[: self._samples]).to(self.labels.device, self.labels.dtype),
        )
        # Simple and safe in threads: begin again when it is full.
        if len(self._cache) * sum(tensor.nbytes for tensor in samples) > CACHED_BYTES:
            self._cache.clear()
        self._cache[client] = samples
        return samples

    def take(self, samples: NDArray[np.int64], client: int, k: int) -> tuple[Inputs, Tensor]:
        """Return some of the client's training samples."""
        index = torch.from_numpy(samples - client * self._samples).to(self.labels.device)
        inputs, labels = self.samples_of(client)
        return inputs[index], labels[index]

    def gather(
        self, clients: Sequence[int], first_batches: Sequence[int], steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Generate these clients' samples; the indices of their batches are into these."""
        inputs, labels = zip(*map(self.samples_of, clients), strict=True)
        positions = self.batches.spans(clients, first_batches, steps)
        positions += self._samples * np.arange(len(clients))[:, None, None]
        index = torch.from_numpy(positions)
        return torch.cat(inputs).flatten(1), torch.cat(labels), index

    def client_fingerprint(self, client: int) -> str:
        """A hash of one client's samples."""
        return self.hash_of(self.samples_of(client))

    def fingerprint(self) -> str:
        """Return a hash of the samples in memory, and of what tells those of other clients."""
        known = f"{len(self.parts)} {self._samples} {self._seed}"
        digest = sha256(known.encode())
        digest.update(self.hash_of(self.arrays).encode())
        return digest.hexdigest()


def client_data_of(train: Any, test: Any, **options: Any) -> ClientData:
    """Return the samples of a task: those given, or those that are generated when needed."""
    if not isinstance(train, SampleGenerator):
        return ClientData(train, test, **options)
    for name in ("alpha", "partition", "test_clients", "normalise"):
        if options.pop(name) is not None:
            raise InputError(f"{name} is given, but train generates the samples of each client")
    if options["augmentation"].is_used:
        raise InputError("crop_padding and flip are for images, but train generates numbers")
    if test is not None:
        raise InputError("test", type(test).__name__, "None: train generates test samples, too")
    clients = options.pop("clients")
    clients = defaults.CLIENTS if clients is None else clients
    return GeneratedData(train, clients=clients, alpha=None, normalise=None, **options)
