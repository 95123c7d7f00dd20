"""Scaling with cores, clients and model size.

python -m benchmarks.scaling                     all parts; what ``make bench`` ends with
python -m benchmarks.scaling cores               the engine "pool" with 1, 2, … workers
python -m benchmarks.scaling links               timetables of every scheme, up to a million clients
python -m benchmarks.scaling memory              FedPBC on the paper's network, 10,000 clients, and
                                                 with a ResNet-18, 100 clients
python -m benchmarks.scaling models              a local step of dense networks of many sizes
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import Comparison, compare, note
from benchmarks.contestant import ROOT, engine
from benchmarks.machine import cores, describe, family, usage
from benchmarks.plots import Line, plot_lines
from benchmarks.run import ROUNDS, Interrupt, add_common, fail, positive
from benchmarks.tables import duration, machine_line, markdown_table, write_json
from benchmarks.work import Work

MIB = 2**20
SAMPLE_SECONDS = 0.05
REPEATS = 3
WIDTHS = (4, 16, 64, 256, 1024, 2048)
MODEL_ROUNDS = 2
LINK_CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
MEMORY_CLIENTS = (100, 1_000, 10_000)
MEMORY_ROUNDS = 10
RESNET_CLIENTS = 100


def cores_part(options: argparse.Namespace) -> str:
    """The pool with 1, 2, … workers against one client after another."""
    work = Work.named("cifar10", "fedpbc", options.samples)
    counts = range(1, len(cores()) + 1)
    entrants = [engine("serial"), *(engine("pool", count) for count in counts)]
    rounds = options.rounds or ROUNDS["cifar10", "fedpbc"]
    comparison = compare(work, entrants, rounds, options.repeats or REPEATS)
    speed = {
        count: comparison.speedup(f"pool@{count}", "serial")
        for count in counts
        if comparison.seconds(f"pool@{count}")
    }
    lines = [
        [str(count), duration(seconds_of(comparison, f"pool@{count}")), f"{times:.2f}"]
        for count, times in speed.items()
    ]
    curves: dict[str, Line] = {
        "pool": (list(speed), list(speed.values())),
        "as many times as workers": (list(counts), list(counts)),
    }
    plot_lines(
        {"times as fast as serial": curves},
        options.out / "scaling-cores.png",
        title="The engine 'pool' with an increasing number of cores",
        across="workers",
        logarithmic=False,
    )
    write_json(options.out / "scaling-cores.json", comparison.as_dict())
    return section(
        "Cores",
        f"{work.title}.",
        ["workers", "per round", "× serial"],
        lines,
        comparison,
        "scaling-cores",
    )


def models_part(options: argparse.Namespace) -> str:
    """A local step of dense networks with more and more parameters."""
    names = ("stacked", "serial", "pool")
    steps: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
    lines, everything = [], []
    for hidden in WIDTHS:
        work = Work("dense", "fedpbc", samples=options.samples or 100, hidden=hidden)
        parameters = hidden * (28 * 28 + 1 + 10) + 10
        note(f"{parameters:,} parameters")
        rounds = options.rounds or MODEL_ROUNDS
        comparison = compare(
            work, [engine(name) for name in names], rounds, options.repeats or REPEATS
        )
        line = [f"{parameters:,}"]
        for name in names:
            if not comparison.seconds(name):
                line.append("–")
                continue
            seconds = seconds_of(comparison, name) / work.steps
            steps[name][0].append(parameters)
            steps[name][1].append(1e6 * seconds)
            line.append(duration(seconds))
        lines.append(line)
        everything.append(comparison.as_dict())
    plot_lines(
        {"microseconds per local step": {name: curve for name, curve in steps.items() if curve[0]}},
        options.out / "scaling-models.png",
        title="A local step of dense networks: 100 clients, batches of 16",
        across="parameters",
    )
    write_json(options.out / "scaling-models.json", {"works": everything})
    return section(
        "Model size",
        "A local step, all clients' steps shared out over the time of a round.",
        ["parameters", *names],
        lines,
        comparison,
        "scaling-models",
    )


def links_part(options: argparse.Namespace) -> str:
    """Timetables of every scheme: time and memory of drawing them, and of asking for every row."""
    from fedpbc import SCHEMES

    points = []
    with tempfile.TemporaryDirectory(prefix="fedpbc-bench-") as name:
        trace = Path(name) / "trace.csv"
        write_trace(trace)
        for clients in options.clients or LINK_CLIENTS:
            # Enough rounds for the clock, not too many for patience.
            rounds = options.rounds or max(100, min(500, 10_000_000 // clients))
            table = Path(name) / "table.npy"
            np.save(table, np.random.default_rng(0).random((rounds, clients)) < 0.1)
            for scheme in SCHEMES:
                files = {"table": table, "trace": trace}
                file_option = ["--file", str(files[scheme])] if scheme in files else []
                size = ["--clients", str(clients), "--rounds", str(rounds)]
                tries = [
                    run_point("links", "--scheme", scheme, *size, *file_option)
                    for _ in range(REPEATS)
                ]
                points.append(sorted(tries, key=lambda point: point["milliseconds"])[REPEATS // 2])
                note(f"{scheme}, {clients:,}: {points[-1]['milliseconds']:.3f} ms per round")
    panels = {
        "milliseconds per round": curves_of(points, "scheme", "milliseconds"),
        "peak memory of the process, MiB": curves_of(points, "scheme", "peak_mib"),
    }
    plot_lines(
        panels,
        options.out / "scaling-links.png",
        title="Drawing a timetable, and asking who is active in every round",
        across="clients",
    )
    machine = describe()
    write_json(options.out / "scaling-links.json", {"machine": machine, "points": points})
    sizes = sorted({point["clients"] for point in points})
    lines = [
        [
            scheme,
            *[
                f"{p['milliseconds']:.3g} ms, {p['peak_mib']:.0f} MiB"
                for p in points
                if p["scheme"] == scheme
            ],
        ]
        for scheme in SCHEMES
    ]
    heads = ["scheme", *[f"{clients:,} clients" for clients in sizes]]
    about = f"Milliseconds per round (median of {REPEATS}) and peak memory, in a separate process."
    return section("Clients: links", about, heads, lines, machine, "scaling-links")


def memory_part(options: argparse.Namespace) -> str:
    """What many clients take in memory: FedPBC, views server and averaged."""
    points = []
    rounds = options.rounds or MEMORY_ROUNDS
    works = [("cnn_cifar10", clients) for clients in options.clients or MEMORY_CLIENTS]
    works.append(("resnet18_gn", RESNET_CLIENTS))
    for name in ("serial", "pool"):
        for model, clients in works:
            size = ["--clients", str(clients), "--rounds", str(rounds), "--model", model]
            points.append(run_point("memory", "--engine", name, *size, watch=True))
            point = points[-1]
            note(
                f"{name}, {model}, {clients:,} clients: {point['pss_mib']:.0f} MiB, "
                f"{point['seconds']:.1f} s"
            )
    plotted = [p for p in points if p["model"] == "cnn_cifar10"]
    each = {p["clients"]: p["clients"] * p["model_bytes"] / MIB for p in plotted}
    curves = {
        **curves_of(plotted, "engine", "pss_mib"),
        "a model for every client": (list(each), list(each.values())),
    }
    plot_lines(
        {"peak memory of all processes, MiB (shared memory counted once)": curves},
        options.out / "scaling-memory.png",
        title=f"FedPBC with the paper's network for CIFAR-10, {rounds} rounds",
        across="clients",
    )
    machine = describe()
    write_json(options.out / "scaling-memory.json", {"machine": machine, "points": points})
    lines = [
        [
            p["engine"],
            p["model"],
            f"{p['clients']:,}",
            f"{p['pss_mib']:.0f} MiB",
            f"{p['rss_mib']:.0f} MiB",
            f"{p['clients'] * p['model_bytes'] / MIB:.0f} MiB",
            duration(p["seconds"]),
        ]
        for p in points
    ]
    heads = ["engine", "network", "clients", "PSS", "RSS", "a model each would be", "took"]
    about = (
        f"{rounds} rounds, a tenth of the links up, one step on one image per round: steps take "
        "time, not memory. Peak over all processes; memory that they share counts once in the PSS "
        "and in each of them in the RSS."
    )
    return section("Clients: memory", about, heads, lines, machine, "scaling-memory")


def write_trace(path: Path) -> None:
    """Devices that are online now and then during a day."""
    rng = np.random.default_rng(0)
    lines = ["client,online_from_s,online_until_s"]
    for device in range(1000):
        for start in np.sort(rng.uniform(0, 80_000, 20)):
            lines.append(f"{device},{start:.0f},{start + rng.uniform(60, 3600):.0f}")
    path.write_text("\n".join(lines) + "\n")


def run_point(*arguments: str, watch: bool = False) -> dict[str, Any]:
    """One point, measured in a process of its own; ``watch``: with the memory of its tree."""
    command = [sys.executable, "-m", "benchmarks.points", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pss = rss = processes = 0
    try:
        while watch and process.poll() is None:
            now = usage(process.pid)
            pss, rss = max(pss, now.pss), max(rss, now.rss)
            processes = max(processes, now.processes)
            time.sleep(SAMPLE_SECONDS)
        output, _ = process.communicate()
    except BaseException:
        for member in family(process.pid):
            member.signal(signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        fail(f"{' '.join(arguments)} failed")
    point: dict[str, Any] = json.loads(output.splitlines()[-1])
    if watch:
        point |= {"pss_mib": pss / MIB, "rss_mib": rss / MIB, "processes": processes}
    return point


def curves_of(points: Sequence[dict[str, Any]], name: str, quantity: str) -> dict[str, Line]:
    """A curve over the number of clients for each name."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for point in points:
        x, y = curves.setdefault(point[name], ([], []))
        x.append(point["clients"])
        y.append(point[quantity])
    return {key: (x, y) for key, (x, y) in curves.items()}


def seconds_of(comparison: Comparison, name: str) -> float:
    """The median over repetitions, of a round."""
    return statistics.median(comparison.seconds(name).values())


def section(
    title: str,
    about: str,
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    comparison: Comparison | dict[str, Any],
    name: str,
) -> str:
    """A part of RESULTS.md."""
    machine = comparison.machine if isinstance(comparison, Comparison) else comparison
    absent = comparison.absent if isinstance(comparison, Comparison) else {}
    parts = [
        f"### {title}",
        f"{about} {machine_line(machine)}.",
        markdown_table(heads, lines),
        *[f"- {each} was not run: {reason}" for each, reason in absent.items()],
        f"![the same as a plot](results/{name}.png)",
    ]
    return "\n\n".join(parts) + "\n"


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "cores": cores_part,
    "links": links_part,
    "memory": memory_part,
    "models": models_part,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write tables and plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rounds", type=positive, help="per turn or point")
    parser.add_argument("--samples", type=positive, help="per client; fewer for a quick try")
    parser.add_argument("--clients", type=positive, nargs="*", help="for links and memory")
    add_common(parser)
    options = parser.parse_args(arguments)
    for part in options.part:
        if part not in PARTS:
            fail(f"{part!r} is not one of {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    with Interrupt():
        for part in options.part or PARTS:
            text = PARTS[part](options)
            (options.out / f"scaling-{part}.md").write_text(text)
            print(text)


if __name__ == "__main__":
    main()
