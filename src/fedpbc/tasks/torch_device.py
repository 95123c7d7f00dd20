"""Devices: validation, seeding and deterministic results on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from fedpbc.errors import InputError
from fedpbc.randomness import integer_seed

__all__ = ["find_device", "initial_draws", "refuse_double", "repeatable", "seeded"]

_drawing = threading.Lock()


def find_device(device: str | torch.device) -> torch.device:
    """Return the device with its number; raise if PyTorch does not see it."""
    name = str(device)
    # Not left to torch.device, which reads cuda:300 as cuda:44.
    kind, colon, digits = name.partition(":")
    # More digits than Python converts.
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 10
    if kind not in {"cpu", "cuda", "mps"} or (colon and not is_number):
        raise InputError("device", name, "'cpu', or for a GPU 'cuda', 'cuda:1', … or 'mps'")
    number = int(digits) if colon else None
    if kind == "cpu":
        if number:
            raise InputError("device", name, "'cpu'")
        return torch.device("cpu")
    available = torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
    if not available:
        raise InputError("device", name, f"'cpu': PyTorch sees no {kind.upper()} device here")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number is None:
        number = torch.cuda.current_device() if kind == "cuda" else 0
    if number >= count:
        allowed = f"'{kind}:0'" if count == 1 else f"from '{kind}:0' to '{kind}:{count - 1}'"
        devices = f"{count} {kind.upper()} device{'s' if count > 1 else ''}"
        raise InputError("device", name, f"{allowed}: PyTorch sees {devices} here")
    return torch.device(kind, number)


def refuse_double(device: torch.device, types: Iterable[torch.dtype]) -> None:
    """Raise if double precision is used on a device that lacks it."""
    if device.type == "mps" and torch.float64 in types:
        raise InputError("device", "mps", "'cpu': MPS has no double precision")


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators, and restore them afterwards; with None, do nothing.

    Only those of the CPU and of the device. ``torch.manual_seed`` would seed every device, and
    ``torch.random.fork_rng`` restores only the devices it is given.
    """
    if seed is None:
        yield
        return
    used = [torch.default_generator]
    if device.type == "cuda":
        used.append(torch.cuda.default_generators[device.index])
    elif device.type == "mps":
        used.append(torch.mps._get_default_mps_generator())
    states = [generator.get_state() for generator in used]
    try:
        for generator in used:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(used, states, strict=True):
            generator.set_state(state)


@contextmanager
def initial_draws(seed: int) -> Iterator[None]:
    """Seed what a module draws when it is made; one thread at a time, since all share a generator.

    Example:
        >>> with initial_draws(3):
        ...     first = torch.rand(2)
        >>> with initial_draws(3):
        ...     torch.equal(torch.rand(2), first)
        True
    """
    with _drawing, torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed every GPU, without restoring it.
        torch.default_generator.manual_seed(integer_seed(seed, "initial model"))
        yield


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make CUDA's convolutions deterministic and in full single precision.

    By default cuDNN may choose an algorithm whose sums have no fixed order, and rounds to TF32. A
    CPU does neither.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False):
        yield
