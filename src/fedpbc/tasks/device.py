"""Where a task computes: on the CPU or on a GPU, and there with the same result every time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from fedpbc.errors import InputError

__all__ = ["find_device", "refuse_double", "repeatable", "seeded"]


def find_device(given: str | torch.device) -> torch.device:
    """The device of that name, with its number, if it is there.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
    """
    name = str(given)
    # Not left to torch.device, which takes cuda:300 for cuda:44.
    kind, colon, digits = name.partition(":")
    if kind not in {"cpu", "cuda", "mps"} or (colon and not digits.isdecimal()):
        raise InputError("device", name, "'cpu', or for a GPU 'cuda', 'cuda:1', … or 'mps'")
    number = int(digits) if colon else None
    if kind == "cpu":
        if number:
            raise InputError("device", name, "'cpu'")
        return torch.device("cpu")
    there = torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
    if not there:
        raise InputError("device", name, f"'cpu': PyTorch sees no {kind.upper()} device here")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number is None:
        number = torch.cuda.current_device() if kind == "cuda" else 0
    if number >= count:
        right = f"'{kind}:0'" if count == 1 else f"from '{kind}:0' to '{kind}:{count - 1}'"
        seen = f"{count} {kind.upper()} device{'s' if count > 1 else ''}"
        raise InputError("device", name, f"{right}: PyTorch sees {seen} here")
    return torch.device(kind, number)


def refuse_double(device: torch.device, types: Iterable[torch.dtype]) -> None:
    """Double precision where a device has none."""
    if device.type == "mps" and torch.float64 in types:
        raise InputError("device", "mps", "'cpu': MPS has no double precision")


def generators(device: torch.device) -> list[torch.Generator]:
    """What random numbers are drawn from when the work is on this device."""
    own = [torch.default_generator]
    if device.type == "cuda":
        own.append(torch.cuda.default_generators[device.index])
    elif device.type == "mps":
        own.append(torch.mps._get_default_mps_generator())
    return own


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Let PyTorch's generators begin at a seed, and put them back afterwards; None: leave them.

    Only those of the CPU and of the device. ``torch.manual_seed`` would seed every device that
    there is, and ``torch.random.fork_rng`` does not put those back that it was not told of.

    Example:
        >>> with seeded(7, torch.device("cpu")):
        ...     first = torch.rand(3)
        >>> with seeded(7, torch.device("cpu")):
        ...     print(torch.equal(torch.rand(3), first))
        True
    """
    if seed is None:
        yield
        return
    own = generators(device)
    states = [generator.get_state() for generator in own]
    try:
        for generator in own:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Let CUDA's convolutions give the same bits every time, and in full single precision.

    Otherwise cuDNN may pick an algorithm whose sums have no order, and rounds to TF32. A CPU does
    neither.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False):
        yield
