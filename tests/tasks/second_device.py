"""A second device that needs no hardware: what is there cannot be mixed with what is on the CPU.

Its tensors hold their values in tensors of the CPU that nobody else can reach, and every operation
is checked before it is run on those. It goes by the name of PyTorch's "meta" device, the only one
besides the CPU for which a build without CUDA has what slices and autograd need; PyTorch's own
FakeTensorMode fails at them there for "cuda", and has no values to compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HERE, THERE = torch.device("cpu"), torch.device("meta")
aten = torch.ops.aten
BETWEEN = {aten.copy_.default, aten._to_copy.default}
"""What carries values from one device to the other."""


class MixedError(AssertionError):
    """Tensors of both devices in one operation, which a GPU would refuse or be slow at."""


class Distant(Tensor):
    """A tensor there."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Distant:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=THERE,
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"Distant({self.held!r})"

    def tolist(self) -> list:
        # PyTorch's own has no way for tensors of a new kind.
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise MixedError(f"{operation} outside of 'with SecondDevice()'")


class Numbers(TorchFunctionMode):
    """Numbers of Python reach the device by way of the CPU, as they do with a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.tensor and kwargs.get("device") == THERE:
            return function(*args, **{**kwargs, "device": HERE}).to(THERE)
        return function(*args, **kwargs)


class SecondDevice(TorchDispatchMode):
    """While it is entered, there is a second device.

    Attributes:
        left_here: operations that gave something on the CPU, other than those that carry it there.
        carried: how many times something was carried from one device to the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_here: list[str] = []
        self.carried = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and importing what could takes seconds.
        return False

    def __enter__(self):
        self._numbers = Numbers()
        self._numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._numbers.__exit__(*error)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        distant = [tensor for tensor in tensors if isinstance(tensor, Distant)]
        near = [tensor for tensor in tensors if not isinstance(tensor, Distant)]
        if any(tensor.device != HERE for tensor in near):
            raise MixedError(f"{operation} on a tensor without values")
        if distant and near and operation not in BETWEEN:
            raise MixedError(f"{operation} on tensors of both devices")
        goes_there = bool(distant)
        if operation is aten.copy_.default:
            goes_there = isinstance(args[0], Distant)
        elif kwargs.get("device") is not None:
            goes_there = torch.device(kwargs["device"]) == THERE
            kwargs = {**kwargs, "device": HERE}
        origin = {id(tensor.held): tensor for tensor in distant}

        def packed(leaf):
            if not isinstance(leaf, Tensor) or not goes_there:
                return leaf
            # What was changed in place is still the same tensor.
            return origin.get(id(leaf)) if id(leaf) in origin else Distant(leaf)

        own, named = tree_map(
            lambda leaf: leaf.held if isinstance(leaf, Distant) else leaf, (args, kwargs)
        )
        found = tree_map(packed, operation(*own, **named))
        if operation in BETWEEN and goes_there != all(isinstance(t, Distant) for t in tensors):
            self.carried += 1
        elif any(type(leaf) is Tensor for leaf in tree_leaves(found)):
            self.left_here.append(str(operation))
        return found


@contextmanager
def default_device(device: torch.device) -> Iterator[None]:
    """Let tensors that are made without a word on where be made on this device."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
