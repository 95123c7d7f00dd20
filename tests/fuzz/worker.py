"""A worker: imports everything once, then forks for every case. And the other end of its pipe."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Outcome, Step, Verdict
from tests.fuzz.place import Place

PROJECT = Path(__file__).parent.parent.parent
SETTINGS = {
    # Threads do not survive a fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # No case may reach the network.
    "HF_HUB_OFFLINE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUTF8": "1",
    # Larger pages: a fork copies fewer entries.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
    # Colours would hide control characters that are not ours.
    "NO_COLOR": "1",
    "TERM": "dumb",
}
OUTPUT = 4000


class Worker:
    """The other end of the pipe."""

    def __init__(self, patience: float = 60.0, keep: Path | None = None) -> None:
        self.options = {"patience": patience, "keep": None if keep is None else str(keep)}
        self.scratch = tempfile.TemporaryDirectory(prefix="fedpbc-fuzz-", dir=_memory())
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", self.scratch.name],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **SETTINGS},
        )

    def run(self, kind: str, seed: int, number: int) -> Verdict:
        """One case."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"kind": kind, "seed": seed, "number": number, **self.options}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return Verdict(**json.loads(self.process.stdout.readline()))
        except BaseException:
            self.process.kill()
            self.process.communicate()
            self.process = self._start()
            raise

    def close(self) -> None:
        """End the process and remove everything."""
        self.process.communicate(timeout=60)
        self.scratch.cleanup()


def _memory() -> str | None:
    """A file system in memory, where there is one: cases write thousands of small files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def serve(scratch: Path) -> None:
    """Read requests, write verdicts."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    templates = scratch / "templates"
    templates.mkdir(exist_ok=True)
    warm_up(scratch)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            verdict = examine(scratch, templates, **request)
        except Exception:
            kind, number = request["kind"], request["number"]
            text = traceback.format_exc()
            verdict = asdict(Verdict(kind, number, 0.0, ["the fuzzer failed"], output=text))
        print(json.dumps(verdict), file=replies, flush=True)


def in_fork(function: Any, seconds: float) -> Any:
    """What a function returns in a process of its own; the traceback if it raised an error."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setpgid(0, 0)
            signal.alarm(int(seconds))  # Not inherited by the steps.
            result = function()
        except BaseException:
            result = traceback.format_exc()
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "the process that made the case died"


def warm_up(scratch: Path) -> None:
    """Import what the commands import, found by running some of them in a fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fedpbc.cli.app import command_tree
        from fedpbc.experiments.build import load_cached
        from fedpbc.experiments.configuration import Config
        from tests.fuzz.kinds import KINDS
        from tests.fuzz.templates import WARM_UP, make_template

        # Half of a short command's time, otherwise.
        command_tree()
        load_cached(Config.from_dict({"data": "digits"}))
        assert KINDS

        def modules() -> list[str]:
            folder = scratch / "warm-up"
            for template in WARM_UP:
                make_template(template, folder / template)
            names = list(sys.modules)
            shutil.rmtree(folder)
            return names

        names = in_fork(modules, 600)
        if isinstance(names, str):
            raise RuntimeError(names)
        for name in names:
            if name.partition(".")[0] not in ("__main__", "__mp_main__", "tests"):
                try:
                    importlib.import_module(name)
                except ImportError:
                    continue  # Made by an extension module, and imported with it.
    fill_caches()
    # Writes to a file in memory need no sync; how it fails is tested elsewhere.
    os.fsync = lambda file: None
    gc.collect()
    gc.freeze()


def fill_caches() -> None:
    """Read settings, compile templates, find fonts and draw once: half of a case's time, else."""
    from io import BytesIO

    from matplotlib.figure import Figure

    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.experiments.configuration import Config
    from fedpbc.links.scheme import SCHEMES
    from fedpbc.options import options_of
    from fedpbc.report.page import page_environment

    for algorithm in ALGORITHMS:
        written = Config.from_dict({"algorithm": algorithm}).to_dict()
        Config.from_dict(written, lenient=True)
    for scheme in SCHEMES.values():
        options_of(scheme.rows)
    environment = page_environment()
    for name in environment.list_templates(extensions=["j2"]):
        environment.get_template(name)
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 2], [1, 10], label="$η_0$, a label")
    axes.set(yscale="log", title="title", xlabel="round", ylabel="accuracy")
    axes.legend()
    for kind in ("png", "svg"):
        figure.savefig(BytesIO(), format=kind)


def examine(
    scratch: Path,
    templates: Path,
    *,
    kind: str,
    seed: int,
    number: int,
    patience: float,
    keep: str | None,
) -> dict[str, Any]:
    """Make a case, run its steps and judge them."""
    from tests.fuzz.judge import judge
    from tests.fuzz.kinds import KINDS
    from tests.fuzz.process import run_step

    began = time.monotonic()
    verdict = Verdict(kind, number, 0.0)
    root = scratch / f"{kind}-{number}" if keep is None else Path(keep).resolve()
    shutil.rmtree(root, ignore_errors=True)
    place = Place(root, templates)
    place.prepare()
    outcomes: list[Outcome] = []
    try:
        case = KINDS[kind].make(Random(f"{seed}/{kind}/{number}"), place)
        verdict.about = case.about
        for step in case.steps:
            before = place.snapshot()
            outcome = run_step(step, place, patience)
            outcomes.append(outcome)
            verdict.steps.append(step.shell())
            verdict.codes.append(outcome.code)
            verdict.problems += judge(step, outcome, place, before)
            verdict.output += shown(step, outcome)
            if outcome.hung:
                break
        if case.check is not None and not any(outcome.hung for outcome in outcomes):
            verdict.problems += case.check(place, outcomes)
    finally:
        if keep is None:
            remove(root)
    verdict.seconds = time.monotonic() - began
    if not verdict.problems:
        verdict.output, verdict.steps = "", []
    return asdict(verdict)


def shown(step: Step, outcome: Outcome) -> str:
    """A step's output for a person, without anything that a terminal obeys."""
    output = outcome.out[:OUTPUT] + outcome.err[-OUTPUT:]
    text = f"$ {step.shell()}\n{output}[exit code {outcome.code}]\n"
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


def remove(root: Path) -> None:
    """Remove a scratch folder, whatever its permissions."""
    shutil.rmtree(root, onerror=_force)


def _force(function: Any, path: str, _: Any) -> None:
    file = Path(path)
    file.parent.chmod(0o700)
    if not file.is_symlink():
        file.chmod(0o700)
    function(path)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
