"""Time, memory and checkpoints against the number of clients, from a thousand to a million.

python -m benchmarks.clients                           # FedAvg and FedPBC, 1,000 up per round
python -m benchmarks.clients --clients 10000 1000000 --algorithms fedavg
python -m benchmarks.clients --rounds 20000 --clients 10000 --active 10 --algorithms fedavg
python -m benchmarks.clients --rounds 20000 --clients 100 --active 10 --algorithms fedpbc

With 1,000 rounds or more: what a long run is like at its beginning and at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import note
from benchmarks.contestant import ROOT
from benchmarks.machine import describe
from benchmarks.plots import plot_lines
from benchmarks.run import RESULTS, Interrupt, fail, positive
from benchmarks.scaling import curves_of
from benchmarks.tables import duration, machine_line, markdown_table, write_json

CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
ALGORITHMS = ("fedavg", "fedpbc")
ROUNDS = 20
ACTIVE = 1_000
LONG = 1_000
MB = 1e6


def run_point(kind: str, **options: Any) -> dict[str, Any]:
    """One measurement in a process of its own."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.client_points", kind, *arguments]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        fail(f"{' '.join(command[2:])} failed")
    point: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return point | {"load": os.getloadavg()[0]}


def short_part(options: argparse.Namespace) -> str:
    """A few rounds for each number of clients."""
    points = []
    for algorithm in options.algorithms:
        for clients in options.clients or CLIENTS:
            size = {"clients": clients, "active": options.active, "rounds": options.rounds}
            points.append(run_point("short", algorithm=algorithm, **size))
            note(f"{algorithm}, {clients:,}: {duration(points[-1]['round_cpu'])} CPU per round")
    return short_page(points, options)


def short_page(points: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    """The table; writes the numbers and the plot."""
    lines = [
        [
            p["algorithm"],
            f"{p['clients']:,}",
            duration(p["round_cpu"]),
            duration(p["round_wall"]),
            duration(p["client_round_cpu"]),
            duration(p["start_cpu"]),
            f"{p['peak_mib']:.0f} MiB",
            f"{p['checkpoint_bytes'] / MB:.1f} MB",
            duration(p["checkpoint_cpu"]),
            f"{p['reports_bytes'] / MB:.0f} MB",
            f"{p['load']:.1f}",
        ]
        for p in points
    ]
    heads = [
        *("algorithm", "clients", "CPU per round", "per round", "CPU per client and round"),
        *("start", "peak memory", "checkpoint", "CPU to write", "last reports", "load"),
    ]
    panels = {
        "CPU seconds per round": curves_of(points, "algorithm", "round_cpu"),
        "peak memory of the process, MiB": curves_of(points, "algorithm", "peak_mib"),
        "bytes of a checkpoint": curves_of(points, "algorithm", "checkpoint_bytes"),
    }
    plot_lines(
        panels,
        options.out / "clients.png",
        title=f"A dense network on generated data, {options.active:,} clients up per round",
        across="clients",
    )
    machine = describe()
    write_json(options.out / "clients.json", {"machine": machine, "points": list(points)})
    about = (
        f"`mlp` on the data set `synthetic`, about {options.active:,} clients up per round, "
        f"{options.rounds} rounds, medians; each line is a process of its own. CPU seconds are "
        "those of all threads, and a round of work is 5 steps on batches of 16 and generating the "
        "client's samples. FedPBC's clients train all rounds since their last contact, so its "
        "rounds become longer with the rounds before them; the views are those without `mean`. "
        "Start: building the run and drawing its links."
    )
    return page("Clients: end to end", about, heads, lines, machine, "clients")


def long_part(options: argparse.Namespace) -> str:
    """Many rounds: the beginning against the end."""
    lines, points = [], []
    for algorithm in options.algorithms:
        for clients in options.clients or (10_000,):
            size = {"clients": clients, "active": options.active, "rounds": options.rounds}
            size["local_steps"] = options.local_steps
            points.append(run_point("long", algorithm=algorithm, **size))
            p = points[-1]
            for when, state in p["states"].items():
                lines.append(
                    [
                        *(algorithm, f"{clients:,}", f"{options.rounds:,}", when),
                        duration(p["round_cpu"][when]),
                        f"{state['rss_mib']:.0f} MiB",
                        f"{state['files']}",
                        f"{state['bytes'] / MB:.2f} MB",
                        f"{p['load']:.1f}",
                    ]
                )
            note(f"{algorithm}, {clients:,}: {duration(p['wall'])}")
    heads = [
        *("algorithm", "clients", "rounds", "at the", "CPU per round"),
        *("memory", "files", "bytes of files", "load"),
    ]
    machine = describe()
    write_json(options.out / "clients-long.json", {"machine": machine, "points": points})
    about = (
        f"A run in a folder, about {options.active:,} clients up per round; medians over a "
        "hundredth of the rounds, without those that are evaluated."
    )
    return page("Clients: long runs", about, heads, lines, machine)


def page(
    title: str,
    about: str,
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    machine: dict[str, Any],
    plot: str = "",
) -> str:
    """A part of RESULTS.md."""
    parts = [f"### {title}", f"{about} {machine_line(machine)}.", markdown_table(heads, lines)]
    parts += [f"![the same as a plot](results/{plot}.png)"] if plot else []
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write tables and plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--clients", type=positive, nargs="*", help="how many; several are a curve")
    parser.add_argument("--algorithms", nargs="*", default=ALGORITHMS, choices=ALGORITHMS)
    parser.add_argument("--active", type=positive, default=ACTIVE, help="clients up per round")
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument("--local-steps", type=positive, default=5, help="of a long run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    is_long = options.rounds >= LONG
    with Interrupt():
        text = (long_part if is_long else short_part)(options)
    (options.out / ("clients-long.md" if is_long else "clients.md")).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
