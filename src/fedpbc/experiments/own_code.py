"""A user's own code, as far as it can be told apart: of an algorithm, a task, a loss, a metric.

A run that is stored must not be taken for one of code that was changed since.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any

from fedpbc.tasks import Supervised, Task

__all__ = ["code_digest", "task_code"]

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def task_code(task: Task) -> list[Any]:
    """What decides how a task of Python trains and is evaluated, besides its data."""
    parts: list[Any] = [type(task), task.training.optimizer, task.training.schedule]
    if isinstance(task, Supervised):
        modules = dict.fromkeys(type(each) for each in task.module.modules())
        metrics = [part for name in sorted(task.metrics) for part in (name, task.metrics[name])]
        parts += [task.options, repr(task.module), *modules, task.loss, *metrics]
    return parts


def code_digest(values: list[Any]) -> str:
    """A hash of users' classes and functions by what they compile to, and of plain values.

    Of this package's and of libraries, the names count: what is in them is a matter of versions.

    Example:
        >>> code_digest([max, 0.1]) == code_digest([max, 0.1])
        True
        >>> code_digest([max, 0.1]) == code_digest([max, 0.2])
        False
    """
    digest, seen = sha256(), set[int]()
    for value in values:
        for text in _texts(value, seen):
            digest.update(f"{text}\n".encode(errors="backslashreplace"))
    return digest.hexdigest()


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, PLAIN):
        yield repr(value)
        return
    if isinstance(value, tuple | list):
        for inner in value:
            yield from _texts(inner, seen)
        return
    if isinstance(value, CodeType):
        yield from _of_code(value, seen)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, partial):
        yield from _texts([value.func, list(value.args), *map(list, value.keywords.items())], seen)
    elif isinstance(value, MethodType):
        yield from _texts([value.__func__, type(value.__self__)], seen)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, seen)
    elif isinstance(value, type):
        yield value.__qualname__
        for kind in value.__mro__ if _is_own(value) else ():
            for name, inner in sorted(vars(kind).items()) if _is_own(kind) else ():
                inner = getattr(inner, "__func__", getattr(inner, "fget", inner))
                # What Python itself puts there, such as a line number, is no code.
                if isinstance(inner, FunctionType) or not name.startswith("__"):
                    yield name
                    yield from _texts(inner, seen)
    else:
        yield from _texts(type(value), seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield function.__name__
    if not _is_own(function):
        return
    yield from _of_code(function.__code__, seen)
    yield from _texts([function.__defaults__, list((function.__kwdefaults__ or {}).items())], seen)
    for cell in function.__closure__ or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # Empty.
            continue
        if isinstance(inner, (*PLAIN, FunctionType)):
            yield from _texts(inner, seen)
    for name in function.__code__.co_names:
        inner = function.__globals__.get(name)
        # A variable in lower case may change while it runs.
        if isinstance(inner, FunctionType | type) or (isinstance(inner, PLAIN) and name.isupper()):
            yield from _texts(inner, seen)


def _of_code(code: CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, frozenset):  # Its order differs from process to process.
            yield repr(sorted(map(repr, constant)))
        else:
            yield from _texts(constant, seen)


def _is_own(value: Any) -> bool:
    """Whether something is a user's: not of this package, of Python or installed."""
    name = str(getattr(value, "__module__", ""))
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return top != "fedpbc" and top not in sys.stdlib_module_names and "site-packages" not in file
