"""Functions that are registered under their names: data sets and models, from plugins too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from fedpbc.errors import InputError

__all__ = ["call_with", "check_function", "check_is_new", "signature_of", "summary_of"]

Function = Callable[..., Any]


def check_function(
    kind: str, function: Function, registered: Function | None, arguments: Collection[str]
) -> None:
    """Raise unless a function can be registered under its name.

    It may take any of the ``arguments`` by name; what it takes besides are its options, which are
    keyword-only and have defaults. ``registered`` is what has its name now: the same function, of a
    module that is imported again, may replace it.
    """
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str) or not name.isidentifier():
        raise InputError(kind, function, "a function with a name")
    check_is_new(kind, name, function, registered)
    signature = signature_of(kind, function, "a function with a signature")
    for parameter in signature.parameters.values():
        is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        named = parameter.name in arguments and parameter.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
        has_default = parameter.default is not inspect.Parameter.empty
        if not named and not (is_option and has_default):
            listed = ", ".join(arguments)
            raise InputError(
                f"the {kind} {name}{signature} may take {listed}, and options after a *, with "
                f"defaults: {parameter.name} is neither"
            )


def check_is_new(kind: str, name: str, function: Function, registered: Function | None) -> None:
    """Raise if another function has the name; the same one, imported again, may replace it."""
    if registered is not None and _origin(registered) != _origin(function):
        raise InputError(kind, name, f"a new name: {_origin(registered)} has it")


def signature_of(kind: str, function: Function, expected: str) -> inspect.Signature:
    """Return a function's signature; an InputError says what was expected if it has none."""
    try:
        return inspect.signature(function)
    except ValueError:  # Of a built-in type.
        raise InputError(kind, function, expected) from None


def call_with(function: Function, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call a registered function with those of the arguments that it takes, and its options."""
    taken = inspect.signature(function).parameters
    return function(**{k: v for k, v in arguments.items() if k in taken}, **options)


def summary_of(function: Function) -> str:
    """Return the first line of a function's docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _origin(function: Function) -> str:
    """Where a function is defined: the same after its module is imported again."""
    return f"{function.__module__}.{function.__qualname__}"
