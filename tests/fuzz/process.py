"""A step in a process of its own: forked, limited, watched, and ended if it hangs."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.case import Outcome, Step
from tests.fuzz.place import PRIVATE, Place

INTERRUPT_SECONDS = 1.5
"""After these, what may work for hours gets a Ctrl-C."""
MEMORY = 3 << 30
FILE_SIZE = 1 << 30
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING: dict[str, tuple[tuple[int, int | None], ...]] = {
    # The positions of each path and of the folder that it is relative to.
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
}
ELSEWHERE = ("/dev/null", "/dev/shm/", "/dev/tty", "/dev/full", "/proc")


def run_step(step: Step, place: Place, patience: float) -> Outcome:
    """Fork, and wait for the end; a step that takes longer than ``patience`` hangs."""
    out, err, outside = (os.memfd_create(name) for name in ("out", "err", "outside"))
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(step, place, out, err, outside)
    interrupt = None if step.quick else INTERRUPT_SECONDS
    code, hung = _wait(child, patience, interrupt)
    seconds = time.monotonic() - began
    left = _left_behind(child)
    texts = [_content(file) for file in (out, err, outside)]
    changed = tuple(dict.fromkeys(texts[2].splitlines()))
    return Outcome(code, texts[0], texts[1], seconds, hung, changed, left)


def _content(file: int) -> str:
    with os.fdopen(file, "rb") as stream:
        stream.seek(0)
        # What is not UTF-8 becomes lone surrogates, which the judge refuses.
        return stream.read(1 << 20).decode("utf-8", "surrogateescape")


def _wait(child: int, patience: float, interrupt: float | None) -> tuple[int, str]:
    """The exit code, and why the process had to be killed."""
    handle = os.pidfd_open(child)
    try:
        if interrupt is not None and not _ended(handle, interrupt):
            os.kill(child, signal.SIGINT)
        if _ended(handle, patience):
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ""
        # Its stack goes to its standard error.
        os.kill(child, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -signal.SIGKILL, f"it did not end within {patience:g} s"
    finally:
        os.close(handle)


def _ended(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _left_behind(group: int) -> str:
    """Processes of a step that has ended."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return ""
        time.sleep(0.03)
    os.killpg(group, signal.SIGKILL)
    return "a process outlived the command"


def _become(step: Step, place: Place, out: int, err: int, outside: int) -> None:
    """Turn this process into the step; never returns."""
    code = 1
    try:
        # A collection would touch, and so copy, every object of the parent.
        gc.disable()
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Die with the parent.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        faulthandler.register(signal.SIGUSR1, file=err)
        os.environ.update(HOME=str(place.home), TMPDIR=str(place.temporary), COLUMNS="100")
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            del os.environ[name]
        tempfile.tempdir = None
        os.chdir(place.work)
        _limit()
        sys.addaudithook(_watcher(place.root, outside))
        if step.confined:
            sys.addaudithook(_reading_watcher(place.root, outside))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _execute(step)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _execute(step: Step) -> int:
    from fedpbc.errors import FedpbcError

    if step.code:
        try:
            exec(compile(step.code, "<case>", "exec"), {"__name__": "__case__"})
        except FedpbcError as error:
            print(f"fedpbc: {error}", file=sys.stderr)
            return 2
        return 0
    from fedpbc.cli import main

    sys.argv = ["fedpbc", *step.arguments]
    try:
        main()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    return 0


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reading_watcher(root: Path, report: int) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that reports every private file that is opened, by whatever name."""
    private = tuple(f"{root}/{name}" for name in PRIVATE)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event != "open" or isinstance(values[0], int):
            return
        name = Path(os.fsdecode(values[0]))
        # Who opens so gets an error where the name itself is a link.
        not_followed = values[2] & os.O_NOFOLLOW
        real = (
            os.path.realpath(name.parent) + f"/{name.name}"
            if not_followed
            else os.path.realpath(name)
        )
        if real.startswith(private):
            os.write(report, f"read {real!r}\n".encode())

    return hook


def _watcher(root: Path, report: int) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook that reports every file outside of ``root`` that is to be changed."""
    inside = f"{root}/"

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            if not values[2] & WRITING:
                return
            paths: tuple[tuple[int, int | None], ...] = ((0, None),)
        elif event in CHANGING:
            paths = CHANGING[event]
        else:
            return
        for position, folder in paths:
            path = values[position]
            if isinstance(path, int):
                continue
            name = Path(os.fsdecode(path))
            base = values[folder] if folder is not None and folder < len(values) else -1
            if isinstance(base, int) and base >= 0:
                name = Path(f"/proc/self/fd/{base}") / name
            # What is removed or renamed is a link itself, not what it points to.
            is_link = event != "open"
            real = os.path.realpath(name.parent if is_link else name)
            real = f"{real.rstrip('/')}/{name.name}" if is_link else real
            if not real.startswith((inside, *ELSEWHERE)) and "__pycache__" not in real:
                os.write(report, f"{event} {real!r}\n".encode())

    return hook
