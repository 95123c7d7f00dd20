"""Runs of the command that are killed, each in a process of its own.

As a script this is a server that imports torch once and forks for every command: twenty kills would
otherwise take a minute of imports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from tests.commandline import Ended


class Server:
    """Forks commands; a kill is {"at": what, "n": which time} or {"after": seconds}."""

    def __init__(self) -> None:
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.killed"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads do not survive a fork.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def run(self, *arguments: object, kill: dict[str, Any] | None = None) -> Ended:
        """Run a command; a killed one has the code -9."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"arguments": [str(a) for a in arguments], "kill": kill}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return Ended(**json.loads(self.process.stdout.readline()))
        except BaseException:
            # A test ran out of time: the answer that may still come is not the next test's.
            self.process.kill()
            self.process.communicate()
            self.process = self.start()
            raise

    def close(self) -> None:
        self.process.communicate(timeout=60)


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

    load_cached("digits", None)
    for line in sys.stdin:
        request = json.loads(line)
        kill = request["kill"] or {}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                run_and_exit(request["arguments"], kill, out.fileno(), err.fileno())
            if "after" in kill:
                time.sleep(kill["after"])
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            err.seek(0)
            print(json.dumps({"code": code, "out": out.read(), "err": err.read()}), flush=True)


def run_and_exit(arguments: list[str], kill: dict[str, Any], out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    if "at" in kill:
        arm(kill["at"], kill["n"])
    sys.argv = ["fedpbc", *arguments]
    code = 1
    try:
        from fedpbc.cli.app import main

        main()
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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

        def append_half(self: folder.RunDirectory, line: dict) -> None:
            if due():
                with self.metrics_path.open("a") as file:
                    text = json.dumps(line)
                    file.write(text[: len(text) // 2])
                    file.flush()
                    die()
            append(self, line)

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
