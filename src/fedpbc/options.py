"""Options read from a signature: the keyword-only parameters of an algorithm or a link scheme.

An option is a parameter such as ``cutoff: Annotated[int, Ge(1)] = 50``. Pydantic checks its type
and bounds, and a wrong value becomes a one-line error.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from fedpbc.errors import InputError

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["Help", "Option", "checked", "nearest", "options_of", "unknown_option"]


@dataclass(frozen=True)
class Help:
    """Annotates a setting that is an option of the command line."""

    text: str
    default: str = ""  # what to show for the default, where that is computed
    flag: str = ""  # the option's name, where it is not the setting's


_SHORTER = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


@dataclass(frozen=True)
class Option:
    """An option: its name, type (with bounds) and default."""

    name: str
    annotation: Any
    default: Any

    def __str__(self) -> str:
        if self.required:
            return f"{self.name}=…"
        # As in a configuration file.
        default = str(self.default).lower() if isinstance(self.default, bool) else self.default
        return f"{self.name}={default}"

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters of ``function``, by name.

    Example:
        >>> def scheme(setting, *, gamma: float = 0.4): ...
        >>> print(*options_of(scheme).values())
        gamma=0.4
    """
    # Not the raw annotations: a class may inherit fields from a module with other names.
    hints = get_type_hints(function, include_extras=True)
    return {
        p.name: Option(p.name, hints.get(p.name, p.annotation), p.default)
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def checked(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    section: str = "",
    also: Iterable[str] = (),
) -> dict[str, Any]:
    """Check ``given`` against the options of ``function``, and fill in defaults.

    ``section`` precedes an option's name in messages; ``also`` are further names to suggest for an
    unknown one.

    Example:
        >>> def scheme(setting, *, gamma: float = 0.4): ...
        >>> checked(scheme, {"gamma": 1}, "links")
        {'gamma': 1.0}
        >>> checked(scheme, {"gama": 1}, "links")
        Traceback (most recent call last):
        fedpbc.errors.InputError: links.gama is unknown: use one of gamma; did you mean 'gamma'?
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    options = options_of(function)
    for name in given:
        if name not in options:
            raise unknown_option(name, [*options, *also], section)
    values: dict[str, Any] = {}
    for name, option in options.items():
        full_name = f"{section}.{name}" if section else name
        if name in given:
            annotation = Any if option.annotation is inspect.Parameter.empty else option.annotation
            adapter: TypeAdapter[Any] = TypeAdapter(
                annotation, config=ConfigDict(strict=True, allow_inf_nan=False)
            )
            try:
                values[name] = adapter.validate_python(given[name])
            except ValidationError as error:
                raise InputError(full_name, given[name], _expected(error)) from None
        elif option.required:
            raise InputError(f"{full_name} is missing: it has no default")
        else:
            values[name] = option.default
    return values


def _expected(error: ValidationError) -> str:
    """What pydantic would accept, in short."""
    messages = []
    for detail in error.errors(include_url=False):
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        for long, short in _SHORTER.items():
            message = message.replace(long, short)
        messages.append(message.removesuffix("."))
    # An option of several types has a message for each.
    return " or ".join(dict.fromkeys(messages))


def unknown_option(name: str, options: Iterable[str], section: str = "") -> InputError:
    """The error for an option that does not exist."""
    names = list(options)
    remedy = f"use {nearest(name, names)}" if names else "there are no options here"
    return InputError(f"{section}.{name} is unknown: {remedy}".removeprefix("."))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return "one of …", with the most similar name if there is one.

    Example:
        >>> nearest("fedavgg", ["fedavg", "mifa"])
        "one of fedavg, mifa; did you mean 'fedavg'?"
    """
    names = list(names)
    similar = difflib.get_close_matches(name, names, n=1)
    return "one of " + ", ".join(names) + (f"; did you mean {similar[0]!r}?" if similar else "")
