"""The paper's tables at the paper's scale, and the study on CIFAR-10: tens of hours of runs.

``python tools/evidence.py list`` says what is done and what is to be run;
``python tools/evidence.py run --data-dir FOLDER --traces TRACES`` runs what is next until it is
told to stop (SIGTERM, SIGINT, ``--until``, ``--hours``), at the lowest priority. What is run, and
why in this order, is in ``evidence_list.py``.

Each finished run is kept as one file ``docs/evidence/PART/NAME.json``, and its folder is removed. A
run that is stopped keeps a checkpoint in ``--work``, and goes on from it to the same bits; if it is
killed instead, a few minutes are lost. Bits depend on the processor and the code: every file names
those that it was made with. So run this from a clone of one commit in an environment of its own,
with ``--keep-in`` and ``--commit`` for the repository (or worktree) that keeps the results.

Each core runs runs of its own, with one thread each: one run on all cores would wait for the
slowest client of every round, and for each evaluation.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from evidence_list import Kept, Run, estimated_seconds, evidence, seconds_per_round
from fedpbc.experiments.comparison_row import window_of
from fedpbc.experiments.run_result import RunResult
from fedpbc.storage.atomic import write_atomically
from fedpbc.storage.toml import toml_text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "docs/evidence"
COUNTERS = ("round", "local_steps", "uploads", "bytes_up", "bytes_down")
VALUES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")
LOST_SECONDS = 150.0
"""Between two checkpoints, on a core that nothing else uses."""
COMMIT_SECONDS = 600.0
DIVERGED = re.compile(r"diverged in round [\d,]+")

Plan = Callable[[Kept], Sequence[Run]]


def kept_runs(keep_in: Path) -> dict[str, dict[str, Any]]:
    """What is kept in a repository, by the runs' ids."""
    files = sorted((keep_in / FOLDER).glob("*/*.json"))
    contents = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return {content["id"]: content for content in contents}


def as_result(content: Mapping[str, Any], deploy_view: str | None = None) -> RunResult:
    """A kept run as one of a ``Comparison``, for tables; a diverged one has a failure."""
    evaluations, config = content["evaluations"], content["config"]
    lines = [
        {
            **{name: evaluations[name][k] for name in COUNTERS},
            "views": {
                view: {
                    **{name: values[name][k] for name in VALUES if name in values},
                    # Its mean over the last rounds, which is all that tables show.
                    "per_class": [content["worst_class"][view]],
                }
                for view, values in evaluations["views"].items()
            },
        }
        for k in range(len(evaluations["round"]))
    ]
    result = RunResult(
        config["algorithm"]["name"],
        config["seed"],
        metrics=lines,
        failure=content["failure"],
        label=content["label"],
        deploy_view=deploy_view,
    )
    return result.with_summary(content["summary"])


def content_of(run: Run, folder: Path) -> dict[str, Any]:
    """What is kept of a run that has finished or diverged."""
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    config["data"].pop("dir", None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary, failure = {}, divergence_of(folder)
    if failure is None:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    keys = ("clients", "parameters", "train_samples", "test_data", "cost", "engine", "versions")
    made_on = starts_file(folder).read_text(encoding="utf-8").splitlines()
    columns: dict[str, Any] = {name: [line[name] for line in lines] for name in COUNTERS}
    columns["views"] = {
        view: {
            name: [rounded(name, line["views"][view][name]) for line in lines] for name in VALUES
        }
        for view in (lines[-1]["views"] if lines else ())
    }
    served = summary.get("client_accuracy", {}).items()
    return {
        "id": run.id,
        "label": run.label,
        "serves": list(run.serves),
        "settings": run.settings,
        "failure": failure,
        "config": config,
        "summary": {key: summary[key] for key in keys if key in summary}
        | {"client_accuracy": {view: without_lists(values) for view, values in served}},
        # In the order in which it was worked on.
        "made_on": [json.loads(line) for line in dict.fromkeys(made_on)],
        "seconds": round(lines[-1]["seconds"], 1) if lines else None,
        "worst_class": {view: worst_class(lines, view) for view in columns["views"]},
        "evaluations": columns,
    }


def worst_class(lines: Sequence[Mapping[str, Any]], view: str) -> float:
    """The lowest accuracy of any class, as the mean over the last rounds."""
    first = lines[-1]["round"] - window_of(lines[-1]["round"])
    last = [line["views"][view]["per_class"] for line in lines if line["round"] > first]
    return round(statistics.fmean(min(v for v in of if v is not None) for of in last), 5)


def rounded(name: str, value: float) -> float:
    """An accuracy on some ten thousand samples to the sample, a loss to four digits."""
    return float(f"{value:.4g}") if name.endswith("loss") else round(value, 5)


def without_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of many clients without the clients themselves."""
    return {k: v for k, v in values.items() if not isinstance(v, list)}


def divergence_of(folder: Path) -> str | None:
    """When a run diverged, if it did."""
    file = folder / "failure.txt"
    match = DIVERGED.search(file.read_text(encoding="utf-8")) if file.is_file() else None
    return match[0] if match else None


def starts_file(folder: Path) -> Path:
    """Beside a run's folder: a line for each start, with the code and the machine."""
    return folder.with_name(f"{folder.name}.starts")


def machine() -> str:
    """The commit and the processor, on which a run's last bits depend."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    info = Path("/proc/cpuinfo")
    # Two generations may have the same name.
    pattern = re.compile(r"^(?:model name|cpu family|model|stepping)\s*:.*", re.MULTILINE)
    found = pattern.findall(info.read_text()) if info.is_file() else []
    processor = ", ".join(" ".join(line.split()) for line in dict.fromkeys(found))
    return json.dumps({"commit": commit.strip(), "processor": processor})


@dataclass
class Runner:
    """Runs what a plan says is next, some side by side, and keeps what has finished."""

    plan: Plan
    keep_in: Path
    work: Path
    data_dir: str = ""
    traces: str = ""
    jobs: int = 2
    commit: bool = False

    def __post_init__(self) -> None:
        self.kept = kept_runs(self.keep_in)
        self.running: dict[str, tuple[Run, subprocess.Popen[bytes]]] = {}
        self.asked: set[int] = set()
        """The processes that were asked to end."""
        self.failed: set[str] = set()
        self.stops = 0
        self.committed = 0.0

    def run(self, end: float = float("inf")) -> int:
        """Run until there is nothing left, until a time, or until it is stopped; returns a code."""
        self.work.mkdir(parents=True, exist_ok=True)
        with (self.work / ".lock").open("w") as lock:
            self.lock = lock.fileno()
            try:
                # Runs inherit it: those that outlive a killed runner still hold it.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SystemExit(f"{self.work} is in use: its runs are still under way") from None
            ended = True
            try:
                while ended or self.running:
                    if self.stops or time.time() >= end:
                        self._stop()
                    elif ended:
                        self._start_next()
                    time.sleep(0.2)
                    ended = self._keep_ended()
            finally:
                # Whatever has happened, as a full disk: nothing is left to run by itself.
                self._stop()
        self._commit(now=True)
        return 1 if self.failed else 0

    def stop(self, *_: object) -> None:
        """End soon, with checkpoints; called again, do not wait for them."""
        self.stops += 1

    def _start_next(self) -> None:
        """Start the first runs that are ready, and neither kept nor under way nor failed."""
        while len(self.running) < self.jobs:
            taken = {*self.running, *self.failed}
            open_runs = (run for run in self.plan(self.kept) if run.ready and run.id not in taken)
            run = next((run for run in open_runs if not run.is_kept(self.kept)), None)
            if run is None:
                return
            self._start(run)

    def folder(self, run: Run) -> Path:
        """Of a run under way; the same run with other settings has another one."""
        mark = crc32(json.dumps(run.settings, sort_keys=True).encode())
        return self.work.resolve() / run.part / f"{run.name}-{mark:08x}"

    def _start(self, run: Run) -> None:
        folder = self.folder(run)
        if (folder / "summary.json").is_file() or divergence_of(folder):
            self._keep(run)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        if (folder / "config.toml").is_file():
            words = ["resume", str(folder)]
        else:
            words = ["run", str(self._configuration(run, folder)), "--out", str(folder)]
            # Whatever a kill has left before there was a run.
            words.append("--overwrite")
        starts = starts_file(folder)
        before = starts.read_text(encoding="utf-8") if starts.is_file() else ""
        write_atomically(starts, before + machine() + "\n")
        with folder.with_name(f"{folder.name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedpbc.cli.app", *words],
                cwd=self.work,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C is passed on once, by _stop.
                start_new_session=True,
                pass_fds=[self.lock],
            )
        self.running[run.id] = run, process
        say(f"{words[0]} {run.id}")

    def _configuration(self, run: Run, folder: Path) -> Path:
        """A configuration file with what depends on the machine."""
        made = json.loads(json.dumps(run.settings))
        # Both engines have the same bits; this one needs one core.
        made["engine"] = "serial"
        made["checkpoint_every"] = max(1, round(LOST_SECONDS / seconds_per_round(made)))
        if self.data_dir:
            made["data"]["dir"] = str(Path(self.data_dir).resolve())
        if "file" in made["links"]:
            made["links"]["file"] = str(Path(self.traces).resolve() / made["links"]["file"])
        file = folder.with_name(f"{folder.name}.toml")
        write_atomically(file, toml_text(made))
        return file

    def _keep_ended(self) -> bool:
        """Keep what has finished; returns whether anything has ended."""
        ended = [pair for pair in self.running.values() if pair[1].poll() is not None]
        for run, process in ended:
            del self.running[run.id]
            folder = self.folder(run)
            if (folder / "summary.json").is_file() or divergence_of(folder):
                self._keep(run)
            elif process.pid in self.asked:
                say(f"stopped {run.id}")
            else:
                # Not tried again before the next start.
                self.failed.add(run.id)
                say(f"failed: {run.id} (code {process.returncode}, see {folder}.log)")
        return bool(ended)

    def _keep(self, run: Run) -> None:
        """Write a run's file, then remove its folder."""
        folder, file = self.folder(run), self.keep_in / FOLDER / f"{run.id}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = content_of(run, folder)
        dumped = ((key, json.dumps(v, separators=(",", ":"))) for key, v in content.items())
        text = "{\n" + ",\n".join(f'"{key}":{value}' for key, value in dumped) + "\n}\n"
        write_atomically(file, text)
        self.kept[run.id] = json.loads(text)
        shutil.rmtree(folder)
        for beside in folder.parent.glob(f"{folder.name}.*"):
            beside.unlink()
        say(f"kept {run.id}" + (f", which {content['failure']}" if content["failure"] else ""))
        self._commit()

    def _stop(self) -> None:
        """Ask what is running to write a checkpoint and end."""
        for _, process in self.running.values():
            if self.stops > 1:
                process.kill()  # It goes on from an earlier checkpoint.
            elif process.pid not in self.asked:
                process.terminate()
                self.asked.add(process.pid)

    def _commit(self, *, now: bool = False) -> None:
        """Commit what is kept, some runs at once; what fails, as in a merge, is tried again."""
        is_due = now or time.time() > self.committed + COMMIT_SECONDS
        if not (self.commit and is_due and self.kept):
            return
        self.committed = time.time()
        git = ["git", "-C", str(self.keep_in)]
        subprocess.run([*git, "add", FOLDER], check=False)
        names = [*git, "diff", "--cached", "--name-only", "--", FOLDER]
        found = subprocess.run(names, capture_output=True, text=True, check=False).stdout.split()
        if found:
            parts = Counter(Path(name).parent.name for name in found)
            message = "Evidence: " + ", ".join(f"{n} of {part}" for part, n in parts.items())
            # Hooks check code, and there is none.
            words = [*git, "commit", "--quiet", "--no-verify", "-m", message, "--", FOLDER]
            subprocess.run(words, check=False)


def progress(plan: Plan, kept: Kept, jobs: int) -> list[str]:
    """What is done and what is to be run, with hours by the speed of the runs that are kept."""
    runs = plan(kept)
    speeds = [
        content["seconds"] / estimated_seconds(content["settings"])
        for content in kept.values()
        if not content["failure"]
    ]
    hours_per_second = (statistics.median(speeds) if speeds else 1.0) / jobs / 3600
    lines, total = [f"{'':18}{'done':>6}{'of':>6}{'hours left':>12}"], 0.0
    for group in dict.fromkeys(run.group for run in runs):
        of_group = [run for run in runs if run.group == group]
        left = [run for run in of_group if not run.is_kept(kept)]
        hours = hours_per_second * sum(estimated_seconds(run.settings) for run in left)
        total += hours
        done = len(of_group) - len(left)
        lines.append(f"{group:18}{done:6}{len(of_group):6}{hours:12.1f}")
    lines.append(f"{'all':30}{total:12.1f}")
    following = [run.id for run in runs if run.ready and not run.is_kept(kept)][:5]
    stale = [run.id for run in runs if run.ready and run.id in kept and not run.is_kept(kept)]
    if stale:
        lines.append(f"kept with other settings, to be made again: {len(stale)}, as {stale[0]}")
    lines.append("next: " + (", ".join(following) or "nothing"))
    return lines


def say(line: str) -> None:
    """A line with the time, at once."""
    print(f"{datetime.now():%H:%M:%S} {line}", flush=True)


def end_of(until: str | None, hours: float | None) -> float:
    """When to stop: the next time that the clock shows ``until``, or in so many hours."""
    ends = [float("inf")]
    if hours is not None:
        ends.append(time.time() + 3600 * hours)
    if until is not None:
        now = datetime.now()
        clock = datetime.strptime(until, "%H:%M")
        at = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
        ends.append((at if at > now else at + timedelta(days=1)).timestamp())
    return min(ends)


def main(plan: Plan = evidence) -> int:
    """List the runs, or run them; a test has a plan of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("list", "run"))
    parser.add_argument("--data-dir", default="", help="of CIFAR-10's and SVHN's Parquet files")
    parser.add_argument("--traces", default="", help="folder with devices5d.csv")
    parser.add_argument("--keep-in", type=Path, default=ROOT, help="repository for the results")
    parser.add_argument("--commit", action="store_true", help="commit them there")
    parser.add_argument("--work", type=Path, default=Path("evidence-runs"), help="unfinished runs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--until", metavar="HH:MM")
    parser.add_argument("--hours", type=float)
    given = parser.parse_args()
    if given.action == "list":
        print("\n".join(progress(plan, kept_runs(given.keep_in), given.jobs)))
        return 0
    end = end_of(given.until, given.hours)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    places = (given.keep_in, given.work, given.data_dir, given.traces)
    runner = Runner(plan, *places, given.jobs, given.commit)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, runner.stop)
    return runner.run(end)


if __name__ == "__main__":
    sys.exit(main())
