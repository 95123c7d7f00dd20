"""Options read off a signature: what an algorithm or a link scheme can be told, and is it right?

An option is a keyword-only parameter, such as ``cutoff: Annotated[int, Ge(1)] = 50``. Its type and
bounds are checked by pydantic, and a wrong value becomes one line.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from fedpbc.errors import InputError, Verbatim

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["Help", "Option", "checked", "first_mistake", "nearest", "options_of"]


@dataclass(frozen=True)
class Help:
    """Annotates a setting that is an option of the command line.

    Attributes:
        text: what it is.
        default: what to show for the default, where that is computed.
        flag: the option's name, where it is not the setting's.

    Example:
        >>> Help("T, how many rounds").flag
        ''
    """

    text: str
    default: str = ""
    flag: str = ""


@dataclass(frozen=True)
class Option:
    """One thing that can be set: its name, type (with bounds) and default.

    Example:
        >>> str(Option("cutoff", int, 50))
        'cutoff=50'
    """

    name: str
    annotation: Any
    default: Any

    def __str__(self) -> str:
        if self.required:
            return f"{self.name}=…"
        # As it would be written in a configuration file.
        lower = str(self.default).lower() if isinstance(self.default, bool) else self.default
        return f"{self.name}={lower}"

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
    # A class may inherit fields from another module, whose names its annotations use.
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
    """``given``, checked against the options of ``function``, with defaults filled in.

    ``section`` is what messages put before an option's name, ``also`` what else could have been
    meant by an unknown one.

    Example:
        >>> def scheme(setting, *, gamma: float = 0.4): ...
        >>> checked(scheme, {"gamma": 1}, "links")
        {'gamma': 1.0}
        >>> checked(scheme, {"gama": 1}, "links")
        Traceback (most recent call last):
        fedpbc.errors.InputError: links.gama is unknown, but should be one of gamma; meant 'gamma'?
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    def full(name: str) -> str:
        return f"{section}.{name}" if section else name

    known = options_of(function)
    for name in given:
        if name not in known:
            raise InputError(full(name), Verbatim("unknown"), nearest(name, [*known, *also]))
    values: dict[str, Any] = {}
    for option in known.values():
        if option.name in given:
            annotation = Any if option.annotation is inspect.Parameter.empty else option.annotation
            adapter: TypeAdapter[Any] = TypeAdapter(
                annotation, config=ConfigDict(strict=True, allow_inf_nan=False)
            )
            try:
                values[option.name] = adapter.validate_python(given[option.name])
            except ValidationError as error:
                raise first_mistake(error, full(option.name), given[option.name]) from None
        elif option.required:
            raise InputError(full(option.name), Verbatim("missing"), "given")
        else:
            values[option.name] = option.default
    return values


SHORTER = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def first_mistake(error: ValidationError, option: str, given: Any) -> InputError:
    """Pydantic's complaints about one option as one line."""
    rights = []
    for mistake in error.errors(include_url=False):
        message = mistake["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        for long, short in SHORTER.items():
            message = message.replace(long, short)
        rights.append(message.removesuffix("."))
    # An option of several types has a complaint for each.
    return InputError(option, given, " or ".join(dict.fromkeys(rights)))


def nearest(name: str, known: Iterable[str]) -> str:
    """«one of …», with the name that was probably meant.

    Example:
        >>> nearest("fedavgg", ["fedavg", "mifa"])
        "one of fedavg, mifa; meant 'fedavg'?"
    """
    names = list(known)
    if not names:
        return "left out: there are no options here"
    close = difflib.get_close_matches(name, names, n=1)
    return "one of " + ", ".join(names) + (f"; meant {close[0]!r}?" if close else "")
