"""What is chosen by name, with options: algorithms, links, data sets, models, optimizers, engines.

One syntax serves all of them: ``fedau:cutoff=5`` in options, TOML and Python is short for the table
``{name = "fedau", cutoff = 5}``. A :class:`Registry` makes a :class:`Choice` of either, checked and
with all options filled in.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args

from fedpbc.errors import InputError
from fedpbc.limits import check_text
from fedpbc.options import Option, check_type, nearest, unknown_option
from fedpbc.storage.files import expanded
from fedpbc.text import listed

__all__ = [
    "Choice",
    "CodeFile",
    "Folder",
    "InputFile",
    "Kept",
    "Registry",
    "TextOfFile",
    "located",
    "parse_value",
    "plain",
    "specification",
    "text_of",
    "texts_of",
]

OPTION_START = re.compile(r":(?=\s*[A-Za-z_][\w.]*\s*=)")


@dataclass(frozen=True)
class Kept:
    """Annotates a text that names a file or a folder: what becomes of it.

    Attributes:
        kind: ``input``: it is copied into a run's folder, and part of the run's identity by its
            content; ``code``: it stays where it is, with the same identity; ``folder``: it stays
            where it is, and is no part of the identity.
    """

    kind: str


InputFile = Annotated[str, Kept("input")]
CodeFile = Annotated[str, Kept("code")]
Folder = Annotated[str, Kept("folder")]


class TextOfFile(str):
    """A text that stands in a file: what it names may lie beside that file.

    Example:
        >>> located(TextOfFile("targets.npy", Path("/nowhere")), "task.targets")
        '/nowhere/targets.npy'
    """

    __slots__ = ("folder",)

    folder: Path

    def __new__(cls, text: str, folder: Path) -> TextOfFile:  # noqa: D102
        made = super().__new__(cls, text)
        made.folder = folder
        return made

    def __getnewargs__(self) -> tuple[str, Path]:  # type: ignore[override]
        return str(self), self.folder


def texts_of(value: Any, folder: Path) -> Any:
    """Values whose texts know in which folder they stand."""
    if isinstance(value, dict):
        return {key: texts_of(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [texts_of(inner, folder) for inner in value]
    return TextOfFile(value, folder) if isinstance(value, str) else value


def located(text: str, option: str) -> str:
    """The absolute path that a text names: beside the file it stands in, or else from here."""
    path = expanded(str(text), option)
    if isinstance(text, TextOfFile) and ((text.folder / path).exists() or not path.exists()):
        path = text.folder / path
    return str(path.absolute())


@dataclass(frozen=True, eq=False)
class Choice:
    """What is chosen by name, with all its options; equal to any other of the same canonical form.

    Attributes:
        options: all that are not None.
        defaults: what options are where nobody gives them.
        kept: of options that name files or folders: what becomes of these, see :class:`Kept`.

    Example:
        >>> links = Choice("markov", {"p": 0.3, "stay": 0.5}, {"stay": 0.5})
        >>> str(links), links["p"], links.table()
        ('markov:p=0.3', 0.3, {'name': 'markov', 'p': 0.3, 'stay': 0.5})
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict, repr=False)
    kept: Mapping[str, str] = field(default_factory=dict, repr=False)

    def table(self) -> dict[str, Any]:
        """The name and the options, as in TOML."""
        return {"name": self.name, **self.options}

    def get(self, option: str, default: Any = None) -> Any:
        """The value of an option; the default where it has none."""
        return self.options.get(option, default)

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def __str__(self) -> str:
        given = {k: v for k, v in self.options.items() if v != self.defaults.get(k)}
        parts = (f"{k}={text_of(v, file=k in self.kept)}" for k, v in given.items())
        return ":".join([self.name, *parts])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash(self._canonical())

    def _canonical(self) -> str:
        return json.dumps(self.table(), sort_keys=True)


def specification(text: str) -> dict[str, Any]:
    """The table that a name with options after colons is short for.

    Example:
        >>> specification("fedau:cutoff=5:over=heard")
        {'name': 'fedau', 'cutoff': 5, 'over': 'heard'}
        >>> specification("ray:address=ray://head:10001")
        {'name': 'ray', 'address': 'ray://head:10001'}
    """
    name, *assignments = (part.strip() for part in OPTION_START.split(text.strip()))
    table: dict[str, Any] = {"name": name}
    for assignment in assignments:
        key, _, value = (word.strip() for word in assignment.partition("="))
        if not value:
            raise InputError(name, str(text), f"with a value after {key}=")
        if key in table:
            raise InputError(name, str(text), f"with one value for {key}")
        parsed = parse_value(value, key)
        if isinstance(parsed, str) and isinstance(text, TextOfFile):
            parsed = TextOfFile(parsed, text.folder)
        table[key] = parsed
    return table


def parse_value(text: str, option: str) -> Any:
    """A TOML value; anything else is a text.

    Example:
        >>> parse_value("[0.1, 1]", "links.p"), parse_value("markov", "links")
        ([0.1, 1], 'markov')
    """
    check_text(text, option)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def text_of(value: Any, *, file: bool = False) -> str:
    """A value as it is in a specification or a label; a file by its name.

    Example:
        >>> [text_of(v) for v in (0.10, 5.0, 1e-3, True, "markov", [0.1, 1])]
        ['0.1', '5', '0.001', 'true', 'markov', '[0.1,1]']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, Mapping):
        name, rest = value.get("name", ""), {k: v for k, v in value.items() if k != "name"}
        return ":".join([str(name), *(f"{k}={text_of(v)}" for k, v in rest.items())])
    return Path(value).name if file and isinstance(value, str) else str(value)


def plain(value: Any) -> Any:
    """Numbers and arrays of NumPy and PyTorch as Python's own, in tables and lists, too.

    Example:
        >>> import numpy as np
        >>> plain({"p": np.array([0.5, 1.0]), "rounds": np.int64(3)})
        {'p': [0.5, 1.0], 'rounds': 3}
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "shape") and hasattr(value, "tolist") else value


def kind_of_path(annotation: Any) -> str | None:
    """What becomes of the files that values of a type name; None if they name none."""
    for part in get_args(annotation):
        if isinstance(part, Kept):
            return part.kind
        if (kind := kind_of_path(part)) is not None:
            return kind
    return None


NotRead = Callable[[str, Mapping[str, Any]], Mapping[str, str]]
"""Which options mean nothing beside the others, by name and options as given: each with the reason
and the remedy."""


@dataclass(frozen=True)
class Registry:
    """What can be chosen in one section; plugins may add to it at any time.

    Attributes:
        section: its name in messages.
        find: what has a name; raises InputError for another name.
        options: the options of what was found.
        names: all names that are known.
        default: the name that a table without one means.
        not_read: options that mean nothing beside the others: they are left out, and an error if
            they are given.
        follows: options that follow from the others, such as from a file, where nobody gives them.

    Example:
        >>> def bernoulli(setting, *, p: float = 0.5): ...
        >>> from fedpbc.options import options_of
        >>> links = Registry("links", {"bernoulli": bernoulli}.__getitem__, options_of,
        ...                  lambda: ["bernoulli"])
        >>> links.parse("bernoulli:p=1") == links.parse({"name": "bernoulli", "p": 1.0})
        True
        >>> links.parse("bernoulli:q=1")
        Traceback (most recent call last):
        fedpbc.errors.InputError: links.q is unknown: use p
    """

    section: str
    find: Callable[[str], Any]
    options: Callable[[Any], Mapping[str, Option]]
    names: Callable[[], Iterable[str]]
    default: str | None = None
    not_read: NotRead = lambda name, given: {}
    follows: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = lambda name, values: {}

    def parse(self, value: Any) -> Choice:
        """The choice that a text, a table or another choice stands for."""
        table = self.table(value)
        name = table.pop("name", self.default)
        if not isinstance(name, str):
            raise InputError(f"{self.section}.name", name, "a name in quotes")
        try:
            options = self.options(self.find(name))
        except InputError:
            first = name.partition(":")[0].strip()
            if ":" in name and first in self.names():
                expected = f"NAME:OPTION=VALUE, such as {first}:{self._example(first)}"
                raise InputError(self.section, name, expected) from None
            raise
        given = {key: plain(inner) for key, inner in table.items() if inner is not None}
        not_read = self.not_read(name, given)
        for key in given:
            if key not in options and key not in not_read:
                raise self._unknown(name, key, given[key], options)
        values, kept = {}, {}
        for key, option in options.items():
            full = f"{self.section}.{key}"
            if key in given:
                annotation = Any if option.annotation is Parameter.empty else option.annotation
                value = check_type(full, given[key], annotation)
                if isinstance(value, str) and (kind := kind_of_path(annotation)) is not None:
                    kept[key] = kind
                    value = located(given[key], full)
                    if not Path(value).exists():
                        what = "a folder" if kind == "folder" else "a file"
                        raise InputError(full, str(given[key]), f"{what} that exists")
            elif option.required:
                raise InputError(f"{full} is missing: it has no default")
            else:
                value = option.default
            if key not in not_read and value is not None:
                values[key] = value
            elif key in not_read and key in given:
                raise InputError(f"{full} is {value!r}, but {not_read[key]}")
        defaults = {k: o.default for k, o in options.items() if not o.required}
        found = {k: v for k, v in self.follows(name, values).items() if k not in values}
        return Choice(name, {**values, **found}, {**defaults, **found}, kept)

    def table(self, value: Any) -> dict[str, Any]:
        """A choice as a table, not checked yet.

        Example:
            >>> Registry("links", str, dict, list).table("markov:p=0.3")
            {'name': 'markov', 'p': 0.3}
        """
        if isinstance(value, Choice):
            return value.table()
        if isinstance(value, str):
            return specification(value)
        if isinstance(value, Mapping):
            return dict(value)
        expected = (
            f"a name, a name with options such as NAME:OPTION=VALUE, or a table [{self.section}]"
        )
        raise InputError(self.section, value, expected)

    def _example(self, name: str) -> str:
        return next((f"{k}={o.default}" for k, o in self.options(self.find(name)).items()), "…")

    def _unknown(
        self, name: str, key: str, value: Any, options: Mapping[str, Option]
    ) -> InputError:
        """The error for an option that this choice has not; another one may have it."""
        others = [n for n in self.names() if n != name and key in self.options(self.find(n))]
        if not others:
            return unknown_option(key, options, self.section)
        have = "has" if len(others) == 1 else "have"
        return InputError(
            f"{self.section}.{key} is {value!r}, but {name} has no such option: "
            f"{listed(others, 3)} {have}"
        )


def find_in(section: str, table: Mapping[str, Any]) -> Callable[[str], Any]:
    """What a registry of a fixed table finds by a name."""

    def find(name: str) -> Any:
        if name not in table:
            raise InputError(section, name, nearest(name, table))
        return table[name]

    return find
