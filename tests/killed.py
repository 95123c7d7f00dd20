"""Runs of the command that are killed, each in a process of its own.

As a script this is a server that imports torch once and forks for every command: twenty kills would
otherwise take a minute of imports.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from tests.commandline import PROGRESS, Ended

MARK = "FEDPBC_TEST_COMMAND"
"""A variable in the environment of every process that a command starts."""


class Server:
    """Forks commands; a kill is {"at": what, "n": which time} or {"after": seconds}.

    {"signal": number, "when": pattern} instead sends a signal to the command and its workers, when
    a file that matches has grown; without "when", when the command has said something.

    With ``preload``, a library with faults of the disk, a command can meet one of them:
    "KIND N FOLDER" as in ``tests/faults/disk_faults.c``.
    """

    def __init__(self, preload: Path | None = None) -> None:
        self.preload = preload
        # A short path: Ray has sockets in it.
        self.places = tempfile.TemporaryDirectory(prefix="k-", dir="/tmp")
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        separate = [] if self.preload is None else own_shared_memory()
        return subprocess.Popen(
            [*separate, sys.executable, "-m", "tests.killed"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads do not survive a fork.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            | ({} if self.preload is None else {"LD_PRELOAD": str(self.preload)}),
        )

    def run(
        self,
        *arguments: object,
        kill: dict[str, Any] | None = None,
        fault: str | None = None,
        victim: Path | None = None,
    ) -> Ended:
        """Run a command; a killed one has the code -9.

        Instead of a command it may be a function: ``"module:function"`` and its arguments, all
        texts. It may raise what the command reports as one line.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.place = Path(tempfile.mkdtemp(prefix="", dir=self.places.name))
        variables = {MARK: str(time.monotonic_ns()), "TMPDIR": str(self.place)}
        if fault is not None:
            variables |= {"DISK_FAULT": fault, "DISK_FAULT_VICTIM": str(victim or "")}
        self.mark = variables[MARK]
        request = {"arguments": [str(a) for a in arguments], "kill": kill, "variables": variables}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            self.calls = int(answer.pop("calls") or 0)
            # On a busy machine a command says how far it is.
            answer["err"] = PROGRESS.sub("", answer["err"])
            return Ended(**answer)
        except BaseException:
            # A test ran out of time: the answer that may still come is not the next test's.
            self.process.kill()
            self.process.communicate()
            self.process = self.start()
            raise

    def left_behind(self) -> list[str]:
        """What the last command left in its folder for temporary files, but for Ray's logs."""
        return sorted(path.name for path in self.place.iterdir() if path.name != "ray")

    def shared_memory(self) -> list[str]:
        """The names of shared memory that commands left behind, where they have their own."""
        if self.preload is None or not own_shared_memory():
            return []
        folder = Path(f"/proc/{self.process.pid}/root/dev/shm")
        return sorted(path.name for path in folder.iterdir())

    def close(self) -> None:
        self.process.communicate(timeout=60)
        self.places.cleanup()


@functools.cache
def own_shared_memory() -> list[str]:
    """What starts a process that shares no memory by name with others, if that is possible."""
    script = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        try:
            subprocess.run([*unshare, *script, "true"], check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return [*unshare, *script]
    return []


def until_done(
    server: Server, start: list[object], folder: Path, kills: list[dict[str, Any]]
) -> int:
    """Start a run, kill it again and again, resume it to its end; returns how often it died."""
    killed = 0
    for kill in [*kills, None]:
        if (folder / "summary.json").is_file():
            break
        begun = (folder / "config.toml").is_file()
        ended = server.run(*(["resume", folder] if begun else start), kill=kill)
        assert ended.code in (0, -signal.SIGKILL), ended.err
        assert ended.err == ""
        killed += ended.code != 0
    assert (folder / "summary.json").is_file()
    return killed


def serve() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fedpbc.cli.progress
        import fedpbc.cli.results
        import fedpbc.experiments.comparison_directory  # noqa: F401
        from fedpbc.experiments.build import load_cached
        from fedpbc.experiments.configuration import Config

    load_cached(Config.from_dict({"data": "digits"}))
    for line in sys.stdin:
        request = json.loads(line)
        kill = request["kill"] or {}
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            tempfile.TemporaryFile("w+") as calls,
        ):
            grown = when_written(kill.get("when"), out.fileno())
            child = os.fork()
            if child == 0:
                os.setsid()
                os.environ.update(request["variables"])
                # Its own. Python would look for it, and leave a file there if killed just then.
                tempfile.tempdir = request["variables"]["TMPDIR"]
                run_and_exit(request["arguments"], kill, out.fileno(), err.fileno(), calls)
            if "signal" in kill:
                while not grown() and not has_ended(child):
                    time.sleep(0.02)
                with suppress(ProcessLookupError):
                    os.killpg(child, kill["signal"])
            if "after" in kill:
                time.sleep(kill["after"])
                with suppress(ProcessLookupError):  # It has no group of its own yet.
                    os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            answer: dict[str, Any] = {"code": code}
            for name, file in (("out", out), ("err", err), ("calls", calls)):
                file.seek(0)
                answer[name] = file.read()
            print(json.dumps(answer), flush=True)


def when_written(pattern: str | None, out: int) -> Callable[[], bool]:
    """Tells whether a file has grown since now; without a pattern, the output."""

    def size() -> int:
        if pattern is None:
            return os.fstat(out).st_size
        return sum(path.stat().st_size for path in Path("/").glob(pattern.lstrip("/")))

    before = size()
    return lambda: size() > before


def has_ended(child: int) -> bool:
    """Whether a process has; its exit code is still to be read."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def run_and_exit(
    arguments: list[str], kill: dict[str, Any], out: int, err: int, calls: TextIO
) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    if "signal" in kill:
        # As in a terminal, also where nohup or a background job ignores them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if "at" in kill:
        arm(kill["at"], kill["n"])
    code, library = 1, ctypes.CDLL(None)
    try:
        if "DISK_FAULT" in os.environ:
            library.disk_fault_arm()
        if ":" in arguments[0]:
            call(*arguments)
            code = 0
        else:
            from fedpbc.cli.app import main

            sys.argv = ["fedpbc", *arguments]
            main()
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        if "DISK_FAULT" in os.environ:
            calls.write(str(library.disk_fault_calls()))
            calls.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(function: str, *arguments: str) -> None:
    """Call a function as the command line calls its own."""
    from fedpbc.errors import explained

    module, name = function.split(":")
    try:
        getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        print(f"fedpbc: {line}", file=sys.stderr)
        sys.exit(2)


def arm(at: str, n: int) -> None:
    """Kill this process when something happens for the n-th time."""
    from fedpbc.experiments import run_directory as folder
    from fedpbc.simulation import last_reports as reports
    from fedpbc.storage import tensors as checkpoint

    left = n

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if at == "sync":
        sync = os.fsync

        def fsync(handle: int) -> None:
            if due():
                die()
            sync(handle)

        os.fsync = fsync
    elif at in ("before rename", "after rename"):
        rename = Path.replace

        def replace(self: Path, target: Path) -> Path:
            last = due()
            if last and at == "before rename":
                die()
            result = rename(self, target)
            if last:
                die()
            return result

        Path.replace = replace
    elif at == "half a file":
        save = checkpoint.write_safetensors  # type: ignore[attr-defined]

        def save_half(place: Path, *content: Any, **options: Any) -> None:
            save(place, *content, **options)
            if due():
                os.truncate(place, place.stat().st_size // 2)
                die()

        checkpoint.write_safetensors = save_half  # type: ignore[attr-defined]
    elif at == "half a line":
        append = folder.RunDirectory.append_metrics

        def append_half(self: folder.RunDirectory, line: dict) -> bytes:
            if due():
                with self.metrics_path.open("a") as file:
                    text = json.dumps(line)
                    file.write(text[: len(text) // 2])
                    file.flush()
                    die()
            return append(self, line)

        folder.RunDirectory.append_metrics = append_half
    elif at == "half a report":
        write = reports.SlotFile.write

        def write_half(self: reports.SlotFile, slot: int, content: memoryview) -> None:
            if due():
                file = self._open()
                file.seek(slot * len(content))
                file.write(content[: len(content) // 2])
                die()
            write(self, slot, content)

        reports.SlotFile.write = write_half
    else:
        raise ValueError(at)


if __name__ == "__main__":
    serve()
