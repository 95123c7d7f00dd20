"""What a link scheme may know of the clients' data: their majority classes and sample counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpbc.errors import InputError
from fedpbc.links.scheme import Setting

__all__ = ["majority_classes", "sample_counts"]


def majority_classes(setting: Setting, scheme: str) -> tuple[NDArray[np.intp], int]:
    """The class of which each client holds most, the lowest of several; and the number of classes.

    ``scheme`` is the name that the error has where the task has no classes.

    Example:
        >>> setting = Setting(seed=1, clients=2, rounds=1, class_shares=[[0.2, 0.8], [0.5, 0.5]])
        >>> majority_classes(setting, "label_cyclic")
        (array([1, 0]), 2)
    """
    if setting.class_shares is None:
        raise _missing(setting, scheme, "classes")
    return setting.class_shares.argmax(axis=1), setting.class_shares.shape[1]


def sample_counts(setting: Setting, scheme: str) -> NDArray[np.float64]:
    """How many samples each client holds."""
    if setting.samples is None:
        raise _missing(setting, scheme, "sample counts")
    return setting.samples


def _missing(setting: Setting, scheme: str, data: str) -> InputError:
    return InputError(
        setting.option,
        scheme,
        f"a scheme that needs no {data}: this task has none, and {setting.option}.p cannot "
        "replace them",
    )
