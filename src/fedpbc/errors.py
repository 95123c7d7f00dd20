"""The errors a user meets: each is one line that says what was given and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedpbc.text import printable

__all__ = [
    "DivergedError",
    "FedpbcError",
    "InputError",
    "MissingExtraError",
    "NoNodeError",
    "TryAgainError",
    "WorkerError",
    "explained",
    "may_work_later",
    "one_line",
]


class FedpbcError(Exception):
    """Anything that stops a command with one line and exit code 2.

    Example:
        >>> try:
        ...     raise FedpbcError("runs/a holds no run")
        ... except FedpbcError as error:
        ...     print(error)
        runs/a holds no run
    """

    exit_code = 2

    def __init__(self, line: object = "") -> None:
        # It may quote a path, a file or a library.
        super().__init__(printable(line, 1000))


class TryAgainError(FedpbcError):
    """Something that may work later without any change, such as a full disk or a taken port.

    The exit code is another one, so that a service manager starts the command again.

    Example:
        >>> TryAgainError("the disk is full").exit_code, FedpbcError("no such option").exit_code
        (75, 2)
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class InputError(FedpbcError, ValueError):
    """A wrong option, file, shape or number: what was given, what is allowed, and the remedy.

    Most errors are about one option: ``InputError(option, given, expected)``. Where that makes no
    natural sentence, the sentence is given whole.

    Example:
        >>> print(InputError("links.gamma", 1.5, "a number from 0 to 1"))
        links.gamma is 1.5, but should be a number from 0 to 1
        >>> print(InputError("runs/a holds no run: there is no config.toml"))
        runs/a holds no run: there is no config.toml
    """

    def __init__(self, option: str, given: object = None, expected: str = "") -> None:
        self.option, self.given, self.expected = option, given, expected
        if not expected:
            super().__init__(printable(option))
            return
        shown, name = printable(_shown(given), 200), printable(option, 200)
        super().__init__(f"{name} is {shown}, but should be {printable(expected)}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str]]:
        # Errors cross process borders when runs go side by side.
        return type(self), (self.option, self.given, self.expected)


class MissingExtraError(FedpbcError, ImportError):
    """A feature whose optional dependency is not installed.

    Example:
        >>> print(MissingExtraError("reading Parquet files", "hub"))
        reading Parquet files needs an extra: pip install 'fedpbc[hub]'
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs an extra: pip install 'fedpbc[{extra}]'")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.what, self.extra)


class DivergedError(FedpbcError, ArithmeticError):
    """A model became infinite or not a number: a client's, or the server's (client None).

    With ``view`` it is the loss of that view's model. ``kept`` says what is left of the run.

    Example:
        >>> print(DivergedError(client=3, round=17))
        the run diverged in round 17: client 3's model is not finite; try a smaller learning rate
    """

    def __init__(
        self, client: int | None, round: int, view: str | None = None, kept: str = ""
    ) -> None:
        self.client, self.round, self.view, self.kept = client, round, view, kept
        what = "the server's model" if client is None else f"client {client}'s model"
        if view is not None:
            what = f"the test loss in the view {view}"
        super().__init__(
            f"the run diverged in round {round}: {what} is not finite; "
            f"try a smaller learning rate{f' ({kept})' if kept else ''}"
        )

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int | None, int, str | None, str]]:
        return type(self), (self.client, self.round, self.view, self.kept)


class WorkerError(FedpbcError):
    """A client's work failed twice in a worker process. ``kept`` says what is left of the run.

    Example:
        >>> print(WorkerError(3, 4, 6, "its process was killed (SIGKILL)"))
        client 3's work of rounds 4 to 6 failed twice: its process was killed (SIGKILL)
    """

    happened = "failed twice"

    def __init__(
        self, client: int, first_round: int, last_round: int, reason: str, kept: str = ""
    ) -> None:
        self.client, self.first_round, self.last_round = client, first_round, last_round
        self.reason, self.kept = reason, kept
        when = f"round {first_round}"
        if last_round > first_round:
            when = f"rounds {first_round} to {last_round}"
        super().__init__(
            f"client {client}'s work of {when} {self.happened}: {reason}"
            f"{f' ({kept})' if kept else ''}"
        )

    def __reduce__(self) -> tuple[type[WorkerError], tuple[int, int, int, str, str]]:
        return type(self), (self.client, self.first_round, self.last_round, self.reason, self.kept)


class NoNodeError(WorkerError):
    """A client's work cannot run, since a cluster has no node left.

    Example:
        >>> print(NoNodeError(3, 4, 4, "no node of the Ray cluster has a CPU"))
        client 3's work of round 4 cannot run: no node of the Ray cluster has a CPU
    """

    happened = "cannot run"


def one_line(error: BaseException) -> str:
    """What went wrong, of an error that is not ours.

    Example:
        >>> one_line(ValueError("no\\nsuch thing"))
        'ValueError: no such thing'
    """
    try:
        text = _out_of_memory(error) or f"{type(error).__name__}: {error}"
    except Exception:  # An error of a plugin, whose text fails.
        text = type(error).__name__
    return printable(text, 300)


def explained(error: BaseException) -> str | None:
    """The one line about an error that a user can do something about; None for a defect of ours.

    Example:
        >>> explained(FileNotFoundError(2, "No such file or directory", "a.toml"))
        'a.toml: No such file or directory'
        >>> explained(KeyError("x")) is None
        True
    """
    if isinstance(error, FedpbcError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError) and (memory := _out_of_memory(error)):
        return memory
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        line = f"{where}{error.strerror or error}"
        # A plugin may only have called us, and it is our file that could not be written.
        location = _location_in_plugin(error, innermost=True)
        return line if location is None else f"{location}: {printable(line, 300)}"
    if isinstance(error, RuntimeError) and (loop := SYMLINK_LOOP.fullmatch(str(error))):
        return f"{loop[1]}: Too many levels of symbolic links"
    return _in_plugin(error)


@contextmanager
def may_work_later() -> Iterator[None]:
    """Turn errors of the machine, such as a full disk, into a TryAgainError.

    Example:
        >>> with may_work_later():
        ...     raise OSError(28, "No space left on device", "a.bin")
        Traceback (most recent call last):
        fedpbc.errors.TryAgainError: a.bin: No space left on device
    """
    try:
        yield
    except BrokenPipeError:
        raise  # Whoever reads the output has gone.
    except (OSError, MemoryError) as error:
        raise TryAgainError(explained(error) or one_line(error)) from error


SYMLINK_LOOP = re.compile(r"Symlink loop from '(.*)'")
"""What ``Path.resolve`` raises before Python 3.13, instead of an OSError."""


ALLOCATION = re.compile(
    r"(?:DefaultCPUAllocator|alloc_cpu)(?:.*allocate (\d+) bytes)?|std::bad_alloc"
)


def _out_of_memory(error: BaseException) -> str | None:
    """One line if memory ran out: Python's, NumPy's or PyTorch's, told without importing them."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    if not isinstance(error, RuntimeError):
        return None
    if type(error).__name__ == "OutOfMemoryError":
        return "not enough memory on the device"
    if "can't start new thread" in str(error):
        return "not enough memory, or too many processes: no thread can be started"
    match = ALLOCATION.search(str(error)[:10_000])
    if match is None:
        return None
    size = f": {int(match[1]):,} bytes more are needed" if match[1] else ""
    return f"not enough memory{size}"


PLUGIN_MODULES = "fedpbc_plugin_"
"""How the names of modules begin that were loaded from a user's file."""


def _in_plugin(error: BaseException) -> str | None:
    """One line if a user's own code raised the error, with the location in it."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # A generator of ours, through which it passed, made a RuntimeError of it.
        error = error.__cause__
    location = _location_in_plugin(error)
    return None if location is None else f"{location}: {one_line(error)}"


def _location_in_plugin(error: BaseException, *, innermost: bool = False) -> str | None:
    """The last line of a user's own code that an error passed; None if there is none.

    ``innermost``: only if that code called none of ours, which then raised it.
    """
    location, step = None, error.__traceback__
    while step is not None:
        frame = step.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(PLUGIN_MODULES):
            location = f"{frame.f_code.co_filename} line {step.tb_lineno}"
        elif innermost and module.partition(".")[0] == "fedpbc":
            location = None
        step = step.tb_next
    return location


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # An integer of too many digits, or an object whose repr fails.
        return f"a {type(value).__name__}"
