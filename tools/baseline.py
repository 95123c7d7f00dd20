"""Record the exact results of small runs, and compare them after a change.

A refactoring must not change one bit of what a run computes. Record with the code before it, then
compare with the code after it::

    python tools/baseline.py record /tmp/baseline
    python tools/baseline.py compare /tmp/baseline

Results are exact only on the machine that recorded them. ``record`` also keeps the run folders and
kills some runs half-way; ``compare`` resumes copies of those with the code as it is now.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

FEDPBC = [str(Path(sys.executable).with_name("fedpbc"))]
SMALL = ["--data", "digits", "--clients", "12", "--rounds", "20", "--evaluate-every", "5"]
CONVOLUTIONS = ["--data", "fashion", "--model", "cnn_svhn", "--clients", "6"]
QUADRATIC = ["--set", "task.targets=targets.npy", "--rounds", "40"]

RUNS: dict[str, list[str]] = {
    "fedpbc-serial": [*SMALL, "--algorithm", "fedpbc", "--engine", "serial"],
    "fedpbc-stacked": [*SMALL, "--algorithm", "fedpbc", "--links", "markov", "--engine", "stacked"],
    "fedpbc-disk": [*SMALL, "--algorithm", "fedpbc", "--links", "bernoulli", "--reported", "disk"],
    "fedavg-ray": [*SMALL, "--algorithm", "fedavg", "--links", "cyclic", "--engine", "ray"],
    "fedavg_all": [*SMALL, "--algorithm", "fedavg_all", "--links", "cyclic_reset"],
    "fedavg_known": [*SMALL, "--algorithm", "fedavg_known", "--links", "bernoulli_varying"],
    "fedau": [*SMALL, "--algorithm", "fedau", "--set", "algorithm.cutoff=3"],
    "f3ast": [*SMALL, "--algorithm", "f3ast", "--links", "markov_varying", "--model", "softmax"],
    "mifa": [*SMALL, "--algorithm", "mifa", "--links", "table", "--set", "links.file=table.csv"],
    "mifa-rescale": [*SMALL, "--algorithm", "mifa", "--set", "algorithm.rescale=true"],
    "fedawe": [*SMALL, "--algorithm", "fedawe", "--trace", "trace.csv", "--set",
               "links.round_seconds=60"],
    "fedvarp": [*SMALL, "--algorithm", "fedvarp", "--links", "always", "--local-steps", "3"],
    "scaffold": [*SMALL, "--algorithm", "scaffold", "--links", "bernoulli", "--set", "links.p=0.4"],
    "downlink": [*SMALL, "--algorithm", "fedpbc", "--downlink", "bernoulli", "--set",
                 "downlink.p=0.6"],
    "downlink-fedavg": [*SMALL, "--algorithm", "fedavg", "--downlink", "markov"],
    "optimizer": [*SMALL, "--algorithm", "fedpbc", "--set", "train.optimizer=adam", "--set",
                  "train.proximal=0.1", "--learning-rate", "0.01"],
    "momentum": [*SMALL, "--algorithm", "fedavg", "--set", "train.momentum=0.9", "--learning-rate",
                 "0.01"],
    "global-rate": [*SMALL, "--algorithm", "fedpbc", "--global-learning-rate", "0.7"],
    "pool": [*CONVOLUTIONS, "--rounds", "6", "--algorithm", "fedpbc", "--engine", "pool"],
    "convolutions": [*CONVOLUTIONS, "--rounds", "6", "--algorithm", "fedavg", "--engine", "serial"],
    "dropout": [*CONVOLUTIONS, "--rounds", "4", "--model", "cnn_cinic10", "--engine", "serial"],
    "quadratic": [*QUADRATIC, "--algorithm", "fedpbc", "--set", "links.p=0.5"],
    "quadratic-fedawe": [*QUADRATIC, "--algorithm", "fedawe", "--set", "links.p=0.3"],
}  # fmt: skip
OTHERS: dict[str, list[str]] = {
    "compare": ["compare", "--data", "digits", "--clients", "8", "--rounds", "10", "--seeds", "0,1",
                "--out", "compare", "--json"],
    "theory": ["theory", "--data", "digits", "--clients", "12", "--rounds", "30", "--json"],
    "theory-p": ["theory", "--p", "0.5,0.2,0.1", "--json"],
    "fig2": ["paper", "fig2", "--quick", "--out", "fig2", "--json"],
    "fig3": ["paper", "fig3", "--quick", "--out", "fig3", "--json"],
    "fig5": ["paper", "fig5", "--quick", "--out", "fig5", "--json"],
    "fig6": ["paper", "fig6", "--quick", "--out", "fig6", "--json"],
}  # fmt: skip
KILLED: dict[str, list[str]] = {
    "killed-fedpbc": [*CONVOLUTIONS, "--rounds", "30", "--algorithm", "fedpbc", "--reported",
                      "disk"],
    "killed-scaffold": [*CONVOLUTIONS, "--rounds", "60", "--algorithm", "scaffold"],
    "killed-fedawe": [*CONVOLUTIONS, "--rounds", "60", "--algorithm", "fedawe", "--links", "markov",
                      "--downlink", "bernoulli"],
}  # fmt: skip
KILLED_ENGINE = ["--engine", "serial", "--set", "checkpoint_every=2", "--evaluate-every", "5"]


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.action == "record":
        folder.mkdir(parents=True)
        results = {**run_all(folder), **kill_some(folder)}
        (folder / "results.json").write_text(json.dumps(results, indent=1))
        print(f"{len(results)} results are in {folder / 'results.json'}")
        return
    before: dict[str, Any] = json.loads((folder / "results.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        now = {**run_all(Path(temporary)), **resume_killed(folder, Path(temporary))}
    different = [name for name in before if before[name] != now.get(name)]
    for name in different:
        print(f"{name}: {before[name]} before, {now.get(name)} now", file=sys.stderr)
    print(f"{len(before) - len(different)} of {len(before)} results are the same")
    sys.exit(bool(different))


def run_all(folder: Path) -> dict[str, Any]:
    """The results of every run that is not killed."""
    write_inputs(folder)
    results: dict[str, Any] = {}
    for name, options in RUNS.items():
        fedpbc(folder, "run", *options, "--out", name)
        results[name] = result_of(folder / name)
    for name, command in OTHERS.items():
        results[name] = digest(without_times(json.loads(fedpbc(folder, *command))))
    return results


def kill_some(folder: Path) -> dict[str, Any]:
    """Kill runs half-way; what they end with is taken from copies that are resumed at once."""
    for name, options in KILLED.items():
        command = [*FEDPBC, "run", *options, *KILLED_ENGINE, "--out", name]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        while not (folder / name / "checkpoint-0000012.safetensors").exists():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended before it could be killed")
            time.sleep(0.001)
        process.kill()
        process.wait()
    with tempfile.TemporaryDirectory() as temporary:
        return resume_killed(folder, Path(temporary))


def resume_killed(folder: Path, temporary: Path) -> dict[str, Any]:
    """The results of copies of the killed runs, resumed."""
    results = {}
    for name in KILLED:
        shutil.copytree(folder / name, temporary / name)
        fedpbc(temporary, "resume", name)
        results[name] = result_of(temporary / name)
    return results


def write_inputs(folder: Path) -> None:
    """The files that the runs name."""
    random = np.random.default_rng(7)
    np.save(folder / "targets.npy", random.normal(size=(9, 3)))
    np.savetxt(folder / "table.csv", random.random((20, 12)) < 0.4, fmt="%d", delimiter=",")
    lines = ["client,online_from_s,online_until_s"]
    lines += [f"{i},{60 * i},{60 * i + 300}" for i in range(12)]
    (folder / "trace.csv").write_text("\n".join(lines) + "\n")


def fedpbc(folder: Path, *arguments: str) -> str:
    """The output of one command."""
    done = subprocess.run([*FEDPBC, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"fedpbc {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout


def result_of(run: Path) -> dict[str, str]:
    """The final models and the metrics of a run, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "final": sha256((run / "final.safetensors").read_bytes()).hexdigest()[:16],
        "metrics": digest(without_times(lines)),
    }


def without_times(value: Any) -> Any:
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("seconds", "command")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def digest(value: Any) -> str:
    """A short name for a JSON value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
