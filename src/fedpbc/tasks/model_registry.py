"""Networks by name: registering them, and building one from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le
from torch import nn

from fedpbc.errors import InputError, one_line
from fedpbc.options import Option, check_arguments, check_type, nearest, options_of, unknown_option
from fedpbc.registration import call_with, check_function
from fedpbc.tasks.torch_device import initial_draws

__all__ = [
    "MODELS",
    "build_model",
    "checked_model_options",
    "find_model",
    "model_options",
    "register_model",
]

Shape = tuple[int, ...]
"""Of a sample: height, width and channels, or the positions of a text, or its numbers."""
Side = Annotated[int, Ge(1), Le(10_000)]
Length = Annotated[int, Ge(1), Le(1_000_000)]
Sides = tuple[Length] | tuple[Length, Length] | tuple[Side, Side, Side]
MAX_CLASSES = 1_000_000
ARGUMENTS = ("shape", "classes", "vocabulary", "every_position")
"""What a function may take of the data, by these names."""

MODELS: dict[str, Callable[..., nn.Module]] = {}
"""The networks by name; each is a function of what it needs to know of the data."""

_Function = TypeVar("_Function", bound=Callable[..., nn.Module])


def register_model(function: _Function) -> _Function:
    """Register a network under the function's name; returns the function unchanged.

    The function returns a new ``torch.nn.Module``. Of the data it may take, by name:

    - ``shape``: of a sample: height, width and channels of a picture (the module sees
      [B, C, H, W]), the positions of a text, or how many numbers;
    - ``classes``: how many outputs there should be;
    - ``vocabulary``: how many different characters a text has;
    - ``every_position``: whether a class is predicted at each position of a text: then outputs
      are [B, classes, T], as ``torch.nn.functional.cross_entropy`` takes them; else [B, classes].

    Keyword-only parameters are options, as in ``--set model.width=128``. PyTorch's generator is
    seeded when it is called, so that the same seed gives the same first model.

    Example:
        >>> @register_model
        ... def linear(shape, classes, *, bias: bool = True):
        ...     '''A single layer.'''
        ...     inputs = shape[0] * shape[1] * shape[2]
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, bias=bias))
        >>> build_model("linear", (8, 8, 1), 10, seed=0, bias=False)[1].bias is None
        True
        >>> del MODELS["linear"]
    """
    name = getattr(function, "__name__", "")
    check_function("model", function, MODELS.get(name), ARGUMENTS)
    if "name" in options_of(function):
        raise InputError(f"an option of the model {name}", "name", "another name")
    MODELS[name] = function
    return function


def find_model(name: str) -> Callable[..., nn.Module]:
    """Return the function that is registered under ``name``."""
    if not isinstance(name, str) or name not in MODELS:
        raise InputError("model", name, nearest(str(name), MODELS))
    return MODELS[name]


def model_options(function: Callable[..., nn.Module]) -> dict[str, Option]:
    """Return the options of a network, by name."""
    options = options_of(function)
    return {name: option for name, option in options.items() if name not in ARGUMENTS}


def checked_model_options(
    function: Callable[..., nn.Module], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Check values for a network's options, and fill in defaults."""
    values: dict[str, Any] = {}
    options = model_options(function)
    for name in given:
        if name not in options:
            raise unknown_option(name, options, "model")
    for name, option in options.items():
        value = given.get(name, option.default)
        annotation = Any if option.annotation is Parameter.empty else option.annotation
        values[name] = check_type(f"model.{name}", value, annotation)
    return values


@check_arguments
def build_model(
    name: str,
    shape: Shape,
    classes: Annotated[int, Ge(1), Le(MAX_CLASSES)],
    seed: Annotated[int, Ge(0)],
    *,
    vocabulary: Annotated[int, Ge(0)] = 0,
    every_position: bool = False,
    **options: Any,
) -> nn.Module:
    """Build a network by name, initialised from the seed.

    Args:
        name: of a network that is built in or registered.
        shape: of a sample.
        classes: how many outputs there should be.
        seed: of the initial model.
        vocabulary: how many different characters a text has.
        every_position: whether a class is predicted at each position of a text.
        **options: of the network.

    Example:
        >>> network = build_model("cnn_cifar10", (32, 32, 3), 10, seed=0)
        >>> sum(p.numel() for p in network.parameters())
        551786
    """
    shape = check_type("shape", shape, Sides)
    function = find_model(name)
    given = checked_model_options(function, options)
    arguments = {
        "shape": shape,
        "classes": classes,
        "vocabulary": vocabulary,
        "every_position": every_position,
    }
    with initial_draws(seed):
        try:
            network = call_with(function, arguments, given)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the model {name} fails: {one_line(error)}") from error
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise InputError(f"the model {name} returns a {kind}, but should be a torch.nn.Module")
    return network
