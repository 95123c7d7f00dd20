"""Data sets as arrays: samples, their targets, and whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedpbc.data.partition import check_labels
from fedpbc.errors import InputError
from fedpbc.limits import numbers_of
from fedpbc.options import check_fields, check_kind

__all__ = ["DataSet", "Split"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels and, where clients bring their own, whose they are.

    Pictures are uint8 [N, H, W, C], texts integers [N, T], one for each character, and rows of
    numbers floating-point [N, F]. Labels are classes, int64 [N]; or one class for each position of
    a text, [N, T]; or floating-point numbers, for a regression. ``clients`` are the numbers of the
    clients whose the samples are, [N].

    Example:
        >>> Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1])).labels.dtype
        dtype('int64')
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    clients: Integers | None = None

    def __post_init__(self) -> None:
        labels, inputs = numbers_of("labels", self.labels), numbers_of("inputs", self.inputs)
        if inputs.ndim < 1 or inputs.dtype.kind not in "biuf":
            raise InputError(f"inputs are {inputs.dtype} of shape {inputs.shape}, no samples")
        object.__setattr__(self, "inputs", inputs)
        if labels.ndim < 1 or labels.dtype.kind not in "iuf" or len(labels) != len(inputs):
            raise InputError(
                f"labels are {labels.dtype} of shape {labels.shape}, "
                f"but should be one integer for each of {len(inputs)} samples"
            )
        if labels.dtype.kind != "f":
            labels = labels.astype(np.int64, copy=False)
        object.__setattr__(self, "labels", labels)
        if self.clients is not None:
            clients = numbers_of("clients", self.clients)
            if clients.shape != (len(inputs),) or clients.dtype.kind not in "iu":
                raise InputError(
                    f"clients are {clients.dtype} of shape {clients.shape}, "
                    f"but should be a client's number for each of {len(inputs)} samples"
                )
            object.__setattr__(self, "clients", clients.astype(np.int64, copy=False))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples: a named data set or the user's own.

    Attributes:
        classes: their names; empty for a regression.
        crop_padding, flip: the augmentation that leaves the class of an image unchanged.
        client_names: of a data set that clients bring themselves, such as the writers of digits:
            both splits then say whose each sample is, and the client with most samples is the
            first. Empty: the samples are partitioned by their labels.
        vocabulary: of a text, how many different characters its numbers stand for; else 0.
        next_token: whether the labels are the characters that come next.
        generator: generates each client's samples when they are needed; the splits then only show
            what they are like. None: the splits are all samples.

    Example:
        >>> split = Split(np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1]))
        >>> DataSet("mine", train=split, test=split, classes=("cat", "dog")).fingerprint()[:8]
        'ee1f7bb2'
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    crop_padding: Annotated[int, Ge(0)] = 0
    flip: bool = False
    client_names: tuple[str, ...] = ()
    vocabulary: Annotated[int, Ge(0)] = 0
    next_token: bool = False
    generator: Any = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_kind("classes", self.classes, (tuple, list), "the names of the classes")
        check_kind("client_names", self.client_names, (tuple, list), "the names of the clients")
        for name, split in (("train", self.train), ("test", self.test)):
            check_kind(name, split, Split, "a Split")
            self._check_labels(name, split)
            self._check_clients(name, split)
            self._check_tokens(name, split)
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InputError(
                f"test has inputs of shape {self.test.inputs.shape[1:]}, "
                f"but should have those of train, {self.train.inputs.shape[1:]}"
            )

    def _check_labels(self, name: str, split: Split) -> None:
        is_float = split.labels.dtype.kind == "f"
        if is_float == bool(self.classes):
            expected = "integers, the numbers of classes" if is_float else "floating-point numbers"
            raise InputError(
                f"labels are {split.labels.dtype} of shape {split.labels.shape} in {name}, but "
                f"should be {expected}, as there are {len(self.classes)} classes"
            )
        if not is_float:
            check_labels(split.labels.reshape(-1), len(self.classes))
        elif not len(split.labels):
            raise InputError("data is empty, but should have at least one sample")

    def _check_clients(self, name: str, split: Split) -> None:
        if (split.clients is None) == bool(self.client_names):
            given = "no clients" if split.clients is None else "clients"
            raise InputError(f"{name} has {given}, but there are {len(self.client_names)} names")
        if split.clients is None:
            return
        count = len(self.client_names)
        low, high = int(split.clients.min()), int(split.clients.max())
        if low < 0 or high >= count:
            raise InputError(
                f"clients in {name} are {low} to {high}, but should be 0 to {count - 1}"
            )
        missing = np.flatnonzero(np.bincount(split.clients, minlength=count) == 0)
        if name == "train" and len(missing):
            raise InputError(
                f"client {self.client_names[missing[0]]!r} has no training samples, "
                "but should have at least one"
            )

    def _check_tokens(self, name: str, split: Split) -> None:
        if not self.vocabulary:
            return
        inputs = split.inputs
        if inputs.dtype.kind not in "iu" or inputs.ndim != 2:
            raise InputError(
                f"{name} has inputs of {inputs.dtype} of shape {inputs.shape}, but should have "
                "integers, samples x positions, with a vocabulary"
            )
        low, high = int(inputs.min()), int(inputs.max())
        if low < 0 or high >= self.vocabulary:
            last = self.vocabulary - 1
            raise InputError(f"inputs in {name} are {low} to {high}, but should be 0 to {last}")

    def fingerprint(self) -> str:
        """Return a hash of all samples and labels, by which a resumed run detects changed data."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            for array in (split.inputs, split.labels, split.clients):
                if array is not None:
                    digest.update(f"{array.dtype.str}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
