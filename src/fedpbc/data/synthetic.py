"""Samples that are generated for each client when they are needed, however many clients there are.

After the data set Synthetic(α, β) of Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated
Optimization in Heterogeneous Networks (FedProx), MLSys 2020. There every client labels its samples
with a linear model that is drawn for it alone, so that no model is right about many clients. Here
these models deviate from one that all clients share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedpbc.data.dataset import DataSet, Split
from fedpbc.options import check_fields
from fedpbc.randomness import generator

__all__ = ["SampleGenerator", "SyntheticClients", "load_synthetic"]

Floats = npt.NDArray[np.float32]
Samples = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]

DECAY = 1.2
"""The variance of the j-th feature around a client's mean is j to the power of minus this."""
SHOWN_CLIENTS = 20
"""How many clients' samples a data set has that is loaded without a task."""


@runtime_checkable
class SampleGenerator(Protocol):
    """Generates the samples of any client; pure functions of their arguments.

    Example:
        >>> isinstance(SyntheticClients(), SampleGenerator)
        True
    """

    @property
    def samples(self) -> int:
        """How many training samples each client has."""

    @property
    def classes(self) -> int:
        """How many classes there are."""

    def train(self, seed: int, client: int) -> Samples:
        """Return the client's training samples: inputs and classes."""

    def test(self, seed: int, client: int, count: int) -> Samples:
        """Return further samples of the client, for testing."""


@dataclass(frozen=True, kw_only=True)
class SyntheticClients:
    """Samples around a mean of each client's own, labelled by a linear model of each client's own.

    Client i draws B_i ~ N(0, input_spread²), the mean v_i ~ N(B_i, 1) of its inputs, its inputs
    x ~ N(v_i, Σ) with Σ_jj = j^−1.2, and its linear model: that of all clients, which has entries
    of N(0, 1), plus model_spread times entries of N(0, 1). The class is the largest output.

    Example:
        >>> clients = SyntheticClients(samples=3, features=4, classes=2)
        >>> inputs, labels = clients.train(seed=0, client=999_999)
        >>> inputs.shape, inputs.dtype, labels.shape
        ((3, 4), dtype('float32'), (3,))
    """

    samples: Annotated[int, Ge(1), Le(100_000)] = 50
    features: Annotated[int, Ge(1), Le(100_000)] = 60
    classes: Annotated[int, Ge(2), Le(10_000)] = 10
    model_spread: Annotated[float, Ge(0), Le(1000)] = 0.5
    input_spread: Annotated[float, Ge(0), Le(1000)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def train(self, seed: int, client: int) -> Samples:
        """Return the client's training samples: inputs and classes."""
        stream = generator(seed, "synthetic client", client)
        return self._draw(stream, self._client(seed, stream), self.samples)

    def test(self, seed: int, client: int, count: int) -> Samples:
        """Return further samples of the client, for testing."""
        known = self._client(seed, generator(seed, "synthetic client", client))
        return self._draw(generator(seed, "synthetic test", client), known, count)

    def _client(self, seed: int, stream: np.random.Generator) -> tuple[Floats, Floats]:
        """The mean of a client's inputs, and its linear model with the biases in front."""
        means = _normal(stream, (1 + self.features,))
        center = means[1:] + np.float32(self.input_spread) * means[0]
        model = _normal(stream, (self.classes, 1 + self.features))
        model *= np.float32(self.model_spread)
        model += _common_model(seed, self.classes, self.features)
        return center, model

    def _draw(
        self, stream: np.random.Generator, client: tuple[Floats, Floats], count: int
    ) -> Samples:
        center, model = client
        inputs = _normal(stream, (count, self.features))
        inputs *= _deviations(self.features)
        inputs += center
        outputs = inputs @ model[:, 1:].T
        outputs += model[:, 0]
        return inputs, outputs.argmax(axis=1)


def _normal(stream: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return stream.standard_normal(shape, dtype=np.float32)


@lru_cache(maxsize=8)
def _common_model(seed: int, classes: int, features: int) -> Floats:
    """The linear model that those of all clients deviate from."""
    return _normal(generator(seed, "synthetic model"), (classes, 1 + features))


@lru_cache(maxsize=8)
def _deviations(features: int) -> Floats:
    """The deviation of each feature around a client's mean."""
    return (np.arange(1, features + 1) ** (-DECAY / 2)).astype(np.float32)


def load_synthetic(clients: SyntheticClients) -> DataSet:
    """Return the data set of these clients; its splits show the first of them with the seed 0."""
    shown = range(SHOWN_CLIENTS)
    parts = [[clients.train(0, i) for i in shown], [clients.test(0, i, 10) for i in shown]]
    train, test = (
        Split(np.concatenate([x for x, _ in part]), np.concatenate([y for _, y in part]))
        for part in parts
    )
    names = tuple(map(str, range(clients.classes)))
    return DataSet("synthetic", train, test, names, generator=clients)
