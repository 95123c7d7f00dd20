"""A user's model and data: a Python file with ``model()`` and ``data(client)``.

A fleet trains it, and so does the simulator, as the task ``app``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedpbc.errors import InputError, one_line
from fedpbc.experiments.plugins import load_plugin
from fedpbc.randomness import generator, integer_seed
from fedpbc.tasks import LocalTraining, Supervised
from fedpbc.tasks.dataset_samples import is_samples
from fedpbc.tasks.inputs import Inputs, joined_inputs, tensors_in
from fedpbc.tasks.losses import Loss, find_loss
from fedpbc.tasks.parameter_layout import RunningStatistics
from fedpbc.tasks.torch_device import initial_draws
from fedpbc.tasks.user_data import Samples, as_tensors
from fedpbc.tasks.user_metrics import Metric

__all__ = ["HELD_OUT", "UserApp", "load_user_app"]

HELD_OUT_PART = 5
"""One in so many of each client's samples is test data, if the file has no ``test``."""
HELD_OUT = (
    "the app has no test(): a fifth of each client's samples is kept out of training, and is the "
    "test data"
)


@dataclass(frozen=True)
class UserApp:
    """The functions of a user's file.

    Attributes:
        model: returns a new module; the server's is the initial model.
        data: returns a client's inputs and labels; called only on that client's device.
        loss: of a batch's outputs and labels, or its name; cross-entropy unless the file defines
            ``loss``.
        test: returns test inputs and labels; only simulations use it.
        metrics: further values of an evaluation: functions of outputs and labels, by name.
        running_statistics: as for :class:`Supervised`.

    Example:
        >>> app = UserApp(
        ...     model=lambda: nn.Linear(3, 2),
        ...     data=lambda client: (torch.randn(20, 3), torch.arange(20) % 2),
        ... )
        >>> app.task(1, clients=4, seed=0, training=LocalTraining()).clients
        4
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Samples]
    loss: Loss | str = functional.cross_entropy
    test: Callable[[], Samples] | None = None
    metrics: Mapping[str, Metric] | None = None
    running_statistics: RunningStatistics = "average"

    def module(self, seed: int) -> nn.Module:
        """Make a module, initialized from the seed."""
        with initial_draws(seed):
            module = _call("model()", self.model)
        if not isinstance(module, nn.Module):
            name = type(module).__name__
            raise InputError(f"model() returns a {name}, but should return a torch.nn.Module")
        return module

    def samples(self, client: int) -> tuple[Inputs, torch.Tensor]:
        """A client's inputs and labels."""
        return self._pair(f"data({client})", self.data, client)

    def _pair(
        self, call: str, function: Callable[..., Any], *arguments: Any
    ) -> tuple[Inputs, torch.Tensor]:
        samples = _call(call, function, *arguments)
        if not is_samples(samples):
            kind = type(samples).__name__
            raise InputError(
                f"{call} returns a {kind}, but should return a pair, inputs and labels, or a "
                "dataset of such pairs"
            )
        return as_tensors(samples, call, find_loss(self.loss).labels)

    def task(
        self,
        client: int,
        *,
        clients: int,
        seed: int,
        training: LocalTraining,
        device: str = "cpu",
    ) -> Supervised:
        """One client's task; the other clients' data is not loaded."""
        samples = self.samples(client)
        # The other clients get a placeholder, so that this one keeps its number.
        everything = np.arange(len(samples[1]))
        placeholder = everything[: training.batch_size]
        parts = [everything if i == client else placeholder for i in range(clients)]
        # A device trains, and evaluates nothing.
        return replace(self, metrics=None)._supervised(samples, parts, seed, training, device)

    def whole_task(self, *, clients: int, seed: int, training: LocalTraining) -> Supervised:
        """The task with all clients' data, to simulate the same fleet."""
        samples = [self.samples(client) for client in range(clients)]
        ends = np.cumsum([len(labels) for _, labels in samples])
        parts = np.split(np.arange(ends[-1]), ends[:-1])
        return self._supervised(_joined(samples), parts, seed, training, "cpu")

    def simulated_task(
        self,
        *,
        clients: int,
        seed: int,
        training: LocalTraining,
        device: str = "cpu",
        validation: float = 0.0,
    ) -> Supervised:
        """The task with all clients' data, and test data that none of them trains on.

        That is what ``test`` returns. Without it, a fifth of each client's samples is kept out of
        training, the same for every seed: what one seed tests must not have been seen by a search
        with another. A client with fewer than five trains on all of them.
        ``validation`` is as for :class:`Supervised`: a share of what is left.

        Example:
            >>> app = UserApp(
            ...     model=lambda: nn.Linear(3, 2),
            ...     data=lambda client: (torch.randn(20, 3), torch.arange(20) % 2),
            ... )
            >>> task = app.simulated_task(clients=4, seed=0, training=LocalTraining())
            >>> task.samples.tolist(), len(task.data.test_labels)
            ([16, 16, 16, 16], 16)
        """
        samples = []
        # Data that an app draws without a seed would differ each time a run is resumed.
        with torch.random.fork_rng(devices=[]):
            for client in range(clients):
                torch.default_generator.manual_seed(integer_seed(0, "data of an app", client))
                samples.append(self.samples(client))
            torch.default_generator.manual_seed(integer_seed(0, "test data of an app"))
            test = None if self.test is None else self._pair("test()", self.test)
        self._check_alike(samples)
        if test is not None:
            kept = [np.arange(len(labels)) for _, labels in samples]
        else:
            split = [_split(k, len(labels)) for k, (_, labels) in enumerate(samples)]
            kept = [indices for indices, _ in split]
            out = [(x[held], y[held]) for (x, y), (_, held) in zip(samples, split, strict=True)]
            test = _joined(out)
            if not len(test[1]):
                raise InputError(
                    f"data(client) returns fewer than {HELD_OUT_PART} samples for every client, "
                    "too few to keep some out for testing: define test()"
                )
        starts = np.cumsum([0, *(len(indices) for indices in kept)])
        parts = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
        trained = zip(samples, kept, strict=True)
        train = [(x[indices], y[indices]) for (x, y), indices in trained]
        task = self._supervised(
            _joined(train), parts, seed, training, device, test, validation=validation
        )
        task.test_is_held_out = self.test is None
        return task

    def _check_alike(self, samples: Sequence[tuple[Inputs, torch.Tensor]]) -> None:
        """Raise unless all clients' samples fit together."""
        kinds = [[(a.shape[1:], a.dtype) for a in (*tensors_in(x), y)] for x, y in samples]
        for client, kind in enumerate(kinds):
            if kind != kinds[0]:
                first, other = (
                    " and ".join(f"{tuple(shape)} ({dtype})" for shape, dtype in each)
                    for each in (kinds[0], kind)
                )
                raise InputError(
                    f"data({client}) returns samples of shape {other}, but data(0) of {first}: "
                    "they should be alike"
                )

    def _supervised(
        self,
        samples: Any,
        parts: Any,
        seed: int,
        training: LocalTraining,
        device: str,
        test: Any = None,
        validation: float = 0.0,
    ) -> Supervised:
        return Supervised(
            self.module(seed),
            samples,
            samples if test is None else test,
            partition=parts,
            loss=self.loss,
            training=training,
            seed=seed,
            device=device,
            validation=validation,
            metrics=self.metrics,
            running_statistics=self.running_statistics,
        )


def load_user_app(
    path: Path, running_statistics: RunningStatistics = "average", loss_name: str | None = None
) -> UserApp:
    """Import a user's file; a loss that is named replaces the file's."""
    module = load_plugin(str(path), "app")
    for name, signature in (("model", "model()"), ("data", "data(client)")):
        if not callable(getattr(module, name, None)):
            raise InputError("app", str(path), f"a file with a function {signature}")
    file_loss: Any = getattr(module, "loss", functional.cross_entropy)
    loss = file_loss if loss_name is None else loss_name
    test = getattr(module, "test", None)
    if test is not None and not callable(test):
        raise InputError("app", str(path), "a file whose test is a function test()")
    metrics = getattr(module, "metrics", None)
    if isinstance(metrics, ModuleType):
        metrics = None  # Such as scikit-learn's, which the file imports.
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InputError("app", str(path), "a file whose metrics are a table of functions")
    return UserApp(module.model, module.data, loss, test, metrics, running_statistics)


def _split(client: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of a client's samples that are trained on, and of those that are kept out."""
    order = generator(0, "held out", client).permutation(count)
    held = count // HELD_OUT_PART
    return np.sort(order[held:]), np.sort(order[:held])


def _joined(samples: Sequence[tuple[Inputs, torch.Tensor]]) -> tuple[Inputs, torch.Tensor]:
    """The samples of all clients, one client after another."""
    return joined_inputs([x for x, _ in samples]), torch.cat([y for _, y in samples])


def _call(call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{call} fails: {one_line(error)}") from error
