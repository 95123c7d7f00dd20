"""What is tried, and what came of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from tests.fuzz.place import Place

Expectation = Literal["any", "success", "refusal"]


@dataclass(frozen=True)
class Step:
    """A command, or a piece of Python.

    Attributes:
        arguments: of the command, if ``code`` is empty.
        code: Python that is executed instead.
        expect: "success" where everything is in order, "refusal" where it surely is not.
        writes: what it may change, relative to the working folder.
        quick: whether it is sure to end soon; what may work for hours is interrupted instead.
        may_differ: whether exit code 1 is an answer.
        confined: whether it may read no file of the user's beside the folder it was given.
    """

    arguments: tuple[str, ...] = ()
    code: str = ""
    expect: Expectation = "any"
    writes: tuple[str, ...] = ()
    quick: bool = True
    may_differ: bool = False
    confined: bool = False

    def shell(self) -> str:
        """The step as a person would type it."""
        if self.code:
            return f"python - <<'END'\n{self.code}\nEND"
        # Bytes that are not UTF-8 cannot be printed; the case's own command repeats them.
        words = [word.encode("utf-8", "backslashreplace").decode() for word in self.arguments]
        return shlex.join(["fedpbc", *words])


@dataclass(frozen=True)
class Outcome:
    """How a step ended; ``hung`` with the stack where it did."""

    code: int
    out: str
    err: str
    seconds: float
    hung: str = ""
    outside: tuple[str, ...] = ()
    left: str = ""


Check = Callable[[Place, list[Outcome]], Iterable[str]]
"""What is wrong beyond the rules that hold for every step."""


@dataclass
class Case:
    """Steps in a place that has been prepared for them."""

    steps: list[Step]
    check: Check | None = None
    about: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of case: how one is made, and how many of a thousand are of it."""

    name: str
    make: Callable[[Random, Place], Case]
    share: int
    damage: bool = False


@dataclass
class Verdict:
    """What is wrong with a case; nothing if all is well."""

    kind: str
    number: int
    seconds: float
    problems: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    output: str = ""
    about: str = ""
    codes: list[int] = field(default_factory=list)


def folder_of(place: Place, name: str) -> Path:
    """A path in the working folder."""
    return place.work / name
