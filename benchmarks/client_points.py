"""One run with many clients, in a process of its own: prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.points import peak_mib

SAMPLED = 0.01
"""The share of a long run's rounds that is its beginning, and its end."""


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The run: a small dense network on generated data, last reports on disk."""
    settings: dict[str, Any] = {
        "algorithm": options.algorithm,
        "data": "synthetic",
        "clients": options.clients,
        "rounds": options.rounds,
        "evaluate_every": options.rounds,
        "links": {"name": "bernoulli", "p": min(1.0, options.active / options.clients)},
        "train": {"local_steps": options.local_steps},
    }
    if options.algorithm == "fedpbc":
        # The mean of all clients' models would need a model of each.
        settings |= {"views": ["server", "averaged", "reported", "corrected"], "reported": "disk"}
    return settings


def short(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A few rounds one by one, and a checkpoint."""
    from fedpbc.engines.malloc import keep_freed_memory
    from fedpbc.experiments.build import build_experiment
    from fedpbc.experiments.checkpoints import Checkpoints
    from fedpbc.experiments.configuration import Config

    keep_freed_memory()  # as the command does
    imported, began = peak_mib(), time.process_time()
    config = Config.from_dict(settings_of(options))
    experiment = build_experiment(config, folder / "reports.bin")
    simulation = experiment.simulation
    started = time.process_time() - began
    rounds, trained = [], 0
    steps = simulation.steps()
    while simulation.round < simulation.rounds:
        server, t = simulation.server, simulation.round
        active = simulation.uplink.active(t)
        # A FedPBC client trains all rounds since its last contact before it uploads.
        work = int((t - server.last_contact[active]).sum())
        work = work if options.algorithm == "fedpbc" else len(active)
        clock, processor = time.perf_counter(), time.process_time()
        evaluated = next(steps)
        if evaluated is None:
            times = time.perf_counter() - clock, time.process_time() - processor
            rounds.append((*times, work))
        trained += work
    clock, processor = time.perf_counter(), time.process_time()
    Checkpoints(folder).save(simulation.round, {"simulation": simulation.state()})
    saved = time.perf_counter() - clock, time.process_time() - processor
    simulation.close()
    return {
        "start_cpu": started,
        "round_wall": statistics.median(wall for wall, _, _ in rounds),
        "round_cpu": statistics.median(cpu for _, cpu, _ in rounds),
        "client_round_cpu": sum(cpu for _, cpu, _ in rounds) / sum(work for *_, work in rounds),
        "checkpoint_wall": saved[0],
        "checkpoint_cpu": saved[1],
        "checkpoint_bytes": sum(f.stat().st_size for f in folder.glob("checkpoint-*")),
        "reports_bytes": sum(f.stat().st_size for f in folder.glob("reports.bin")),
        "peak_mib": peak_mib(),
        "imported_mib": imported,
    }


def resident_mib() -> float:
    """The memory that this process has now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell a process's memory")


def long(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A run as the command makes it, watched at its beginning and at its end."""
    from fedpbc.engines.malloc import keep_freed_memory
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.execution import Watcher
    from fedpbc.experiments.start import start_run

    keep_freed_memory()
    settings = settings_of(options) | {"evaluate_every": max(1, options.rounds // 20)}
    window = max(10, int(SAMPLED * options.rounds))
    # Not the first rounds: they also import and allocate.
    windows = {"begin": range(window, 2 * window), "end": range(options.rounds - window, 10**9)}
    times: dict[str, list[float]] = {name: [] for name in windows}
    states: dict[str, dict[str, float]] = {}
    last = time.process_time()

    def on_round(done: int, metrics: object) -> None:
        nonlocal last
        now = time.process_time()
        for name, rounds in windows.items():
            if done in rounds and metrics is None:
                times[name].append(now - last)
            if done in rounds:
                files = [path for path in (folder / "run").rglob("*") if path.is_file()]
                size = sum(path.stat().st_size for path in files)
                states[name] = {"files": len(files), "bytes": size, "rss_mib": resident_mib()}
        last = time.process_time()

    began, clock = time.process_time(), time.perf_counter()
    start_run(Config.from_dict(settings), folder / "run", watcher=Watcher(on_round=on_round))
    return {
        "cpu": time.process_time() - began,
        "wall": time.perf_counter() - clock,
        "round_cpu": {name: statistics.median(values) for name, values in times.items()},
        "states": states,
        "peak_mib": peak_mib(),
    }


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["short", "long"])
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--active", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--local-steps", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedpbc-bench-") as name:
        point = {"short": short, "long": long}[options.kind](options, Path(name))
    print(json.dumps(vars(options) | point))


if __name__ == "__main__":
    main()
