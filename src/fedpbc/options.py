"""Options read from a signature: the keyword-only parameters of an algorithm or a link scheme.

An option is a parameter such as ``cutoff: Annotated[int, Ge(1)] = 50``. Pydantic checks its type
and bounds, and a wrong value becomes a one-line error.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from fedpbc.errors import InputError
from fedpbc.limits import check_values
from fedpbc.synonyms import key_of, place_in_python, right_name

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = [
    "Form",
    "Help",
    "Option",
    "check_arguments",
    "check_fields",
    "check_keywords",
    "check_kind",
    "check_type",
    "checked",
    "checked_given",
    "nearest",
    "options_of",
    "unknown_keyword",
    "unknown_option",
    "worded",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)
SECTIONS = ("algorithm", "task", "data", "model", "train", "links", "downlink", "aggregation")
"""Of a configuration: what is unknown in one of them may be a setting of another."""


@dataclass(frozen=True)
class Form:
    """Annotates a type with what its values are, in words: of an option of several types."""

    text: str


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
    try:
        return dict(_read_options(function))
    except TypeError:  # A callable that cannot be hashed.
        return _read_options.__wrapped__(function)


@lru_cache(maxsize=512)
def _read_options(function: Callable[..., Any]) -> dict[str, Option]:
    # Read once: evaluating annotations was most of the time in which a configuration is checked.
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
        fedpbc.errors.InputError: links.gama is unknown: use gamma
    """
    values = checked_given(function, given, section, also)
    options = options_of(function)
    for name, option in options.items():
        if name not in given and option.required:
            full_name = f"{section}.{name}" if section else name
            raise InputError(f"{full_name} is missing: it has no default")
    return {name: values.get(name, option.default) for name, option in options.items()}


def checked_given(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    section: str = "",
    also: Iterable[str] = (),
) -> dict[str, Any]:
    """Check ``given`` as :func:`checked` does, without the defaults of what is not given."""
    options = options_of(function)
    for name in given:
        if name not in options:
            raise unknown_option(name, [*options, *also], section)
    values: dict[str, Any] = {}
    for name, option in options.items():
        if name in given:
            annotation = Any if option.annotation is inspect.Parameter.empty else option.annotation
            full_name = f"{section}.{name}" if section else name
            values[name] = check_type(full_name, given[name], annotation)
    return values


def check_type(name: str, value: Any, annotation: Any) -> Any:
    """Return a value of that type, with its bounds; a wrong one is an InputError.

    Example:
        >>> from annotated_types import Ge
        >>> check_type("clients", -1, Annotated[int, Ge(1)])
        Traceback (most recent call last):
        fedpbc.errors.InputError: clients is -1, but should be at least 1
    """
    from pydantic import ValidationError

    check_values(value, name)
    try:
        return _adapter(annotation).validate_python(_plain(value))
    except ValidationError as error:
        raise InputError(name, value, _forms(annotation) or _expected(error)) from None


@lru_cache(maxsize=256)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # A plugin's option may be of any type.
    settings = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(annotation, config=settings)


def check_arguments(function: Function) -> Function:
    """Check the arguments of a public function against its annotations, where it is called.

    Numbers, texts, truth values and None are checked, with their bounds. What is of another type,
    such as an array, is for the function to check.

    Example:
        >>> @check_arguments
        ... def draw(table: list, clients: int, alpha: float = 0.1): ...
        >>> draw([], clients=2.5)
        Traceback (most recent call last):
        fedpbc.errors.InputError: clients is 2.5, but should be a valid integer
    """
    signature = inspect.signature(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @lru_cache(maxsize=1)
    def annotations() -> dict[str, Any]:
        # At the first call: annotations may name what is defined further down.
        hints = get_type_hints(function, include_extras=True)
        return {name: hint for name, hint in hints.items() if _is_plain(hint)}

    @wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        for name in () if takes_any else options:
            if name not in signature.parameters:
                known = [each for each in signature.parameters if each != "self"]
                raise unknown_keyword(function, name, known)
        bound = signature.bind(*arguments, **options)
        hints = annotations()
        for name, value in bound.arguments.items():
            if name in hints:
                bound.arguments[name] = check_type(name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return cast("Function", wrapper)


def check_fields(instance: Any) -> None:
    """Check the fields of a frozen dataclass as :func:`check_arguments` checks arguments."""
    kind: Any = type(instance)
    for name, hint in _plain_fields(kind).items():
        object.__setattr__(instance, name, check_type(name, getattr(instance, name), hint))


@lru_cache(maxsize=256)
def _plain_fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = kind.__dataclass_fields__
    return {name: hint for name, hint in hints.items() if name in fields and _is_plain(hint)}


def check_kind(name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise InputError unless the argument is an object of that kind."""
    if not isinstance(value, kind):
        raise InputError(name, value, expected)


def _is_plain(annotation: Any) -> bool:
    """Whether values of this type are numbers, texts, truth values or None."""
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    if get_origin(annotation) is Literal or annotation in (int, float, str, bool, type(None)):
        return True
    if get_origin(annotation) in (Union, UnionType):
        return all(map(_is_plain, get_args(annotation)))
    return False


def _plain(value: Any) -> Any:
    """A number of NumPy or PyTorch as a number of Python."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    try:
        return value.item() if is_scalar else value
    except RuntimeError:  # A tensor without data, on the device "meta".
        return value


def _forms(annotation: Any) -> str:
    """What an option of several types may be: the allowed forms; empty for other options."""
    members = [m for m in _members(annotation) if m is not type(None)]
    forms = [_form(member) for member in members]
    return " or ".join(filter(None, [", ".join(forms[:-1]), forms[-1]])) if len(forms) > 1 else ""


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _form(annotation: Any) -> str:
    """What a value of a type is, in words.

    Example:
        >>> from annotated_types import Ge, Le
        >>> _form(list[Annotated[float, Ge(0), Le(1)]])
        'a list of numbers from 0 to 1'
    """
    if get_origin(annotation) is Annotated:
        kind, *bounds = get_args(annotation)
        said = next((bound.text for bound in bounds if isinstance(bound, Form)), None)
        return said or f"{_form(kind)}{_range(bounds)}"
    if get_origin(annotation) is list:
        [item] = get_args(annotation) or (Any,)
        item_form = _form(item).removeprefix("a ")
        return f"a list of {re.sub('number|text', lambda word: f'{word[0]}s', item_form, count=1)}"
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _range(bounds: Iterable[Any]) -> str:
    """The bounds of a number, in words."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    given = {key: getattr(bound, key) for bound in bounds for key in words if hasattr(bound, key)}
    if given.keys() == {"ge", "le"}:
        return f" from {given['ge']} to {given['le']}"
    return " and".join(f" {words[key]} {value}" for key, value in given.items())


def _expected(error: ValidationError) -> str:
    """What pydantic would accept, in short."""
    return worded(error.errors(include_url=False))


def worded(details: Iterable[Mapping[str, Any]]) -> str:
    """What findings of pydantic say would be right, in short."""
    messages = []
    for detail in details:
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        for long, short in _SHORTER.items():
            message = message.replace(long, short)
        messages.append(message.removesuffix("."))
    # An option of several types has a message for each.
    return " or ".join(dict.fromkeys(messages))


def unknown_option(
    name: str, options: Iterable[str], section: str = "", otherwise: str = ""
) -> InputError:
    """The error for an option that does not exist; ``otherwise``: what else may be given."""
    names = list(options)
    remedy = "there are no options here"
    if meant := right_name(str(name), names) or (
        key_of(str(name)) if section in SECTIONS else None
    ):
        remedy = f"use {meant}"
    elif names:
        remedy = f"use {nearest(str(name), names, otherwise)}"
    return InputError(f"{section}.{name} is unknown: {remedy}".removeprefix("."))


def unknown_keyword(function: Callable[..., Any], name: str, known: Iterable[str]) -> InputError:
    """The error for an argument that a function or a class does not have.

    Example:
        >>> def simulate(task, *, rounds=500): ...
        >>> print(unknown_keyword(simulate, "num_rounds", ["task", "rounds"]))
        simulate() has no num_rounds: use rounds
        >>> print(unknown_keyword(simulate, "lr", ["task", "rounds"]))
        simulate() has no lr: use LocalTraining(learning_rate=…), the task's training
    """
    names = [*known]
    call = function.__qualname__.removesuffix(".__init__")
    # Supervised's train is samples, and not a section.
    own = right_name(name, [each for each in names if each != "train"])
    meant = own or place_in_python(name) or nearest(name, names)
    return InputError(f"{call}() has no {name}: use {meant}")


def check_keywords(kind: Kind) -> Kind:
    """Decorate a dataclass: a keyword that it does not have is an InputError with the right name.

    Example:
        >>> @check_keywords
        ... @dataclass(kw_only=True)
        ... class Training:
        ...     learning_rate: float = 0.05
        >>> Training(lr=0.1)
        Traceback (most recent call last):
        fedpbc.errors.InputError: Training() has no lr: use learning_rate
    """
    made: Any = cast("Any", kind).__init__

    @wraps(made)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        names = inspect.signature(made).parameters
        for name in options:
            if name not in names:
                raise unknown_keyword(made, name, list(names)[1:])
        made(self, *arguments, **options)

    setattr(kind, "__init__", init)  # noqa: B010  # mypy allows no assignment
    return kind


def nearest(name: object, names: Iterable[str], otherwise: str = "") -> str:
    """Return "one of …", with the most similar name if there is one; a single name as it is.

    ``otherwise`` describes what else may be given, besides the names.

    Example:
        >>> nearest("fedavgg", ["fedavg", "mifa"])
        "one of fedavg, mifa; did you mean 'fedavg'?"
        >>> nearest("fedau", ["fedavg"])
        'fedavg'
        >>> nearest("x", ["rounds"], "another setting by its key")
        'one of rounds, or another setting by its key'
    """
    names = list(names)
    if len(names) == 1 and not otherwise:
        return names[0]
    similar = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    choices = ", ".join([*names, *([f"or {otherwise}"] if otherwise else [])])
    return f"one of {choices}" + (f"; did you mean {similar[0]!r}?" if similar else "")
