"""A real fleet: how long a round takes, and what a device and the server need for it.

All processes run on this machine, so the nodes share its cores: with more nodes than cores a round
takes as long as all their work together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, usage
from benchmarks.plots import new_figure, save, tidy
from benchmarks.tables import duration, machine_line, markdown_table, write_json

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
APP = """
import torch
from fedpbc.tasks.networks import build_model

def model():
    return build_model("cnn_cifar10", (32, 32, 3), 10, seed=0)

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(500, 3, 32, 32, generator=random), torch.arange(500) % 10
"""


def measure(nodes: int, rounds: int) -> dict[str, Any]:
    """One fleet, all links up."""
    from fedpbc.deployment.ops.local_fleet import LocalFleet

    settings = {
        "rounds": rounds,
        "clients": nodes,
        "fleet": {"round_seconds": 300.0, "wait_for": nodes},
    }
    memory: list[list[float]] = [[] for _ in range(nodes)]
    used: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "app.py").write_text(APP)
        with LocalFleet(root / "fleet", settings, app=root / "app.py") as fleet:
            fleet.start()
            names = [[f"node-{k}", f"trainer-{k}"] for k in range(nodes)]
            while not fleet.step():
                done = len(fleet.lines())
                # The first round begins with caches that are empty.
                if done:
                    for k in range(nodes):
                        memory[k].append(sum(pss(fleet.supervisor, name) for name in names[k]))
                    trainer = cpu_seconds(fleet.supervisor, [each[1] for each in names])
                    node = cpu_seconds(fleet.supervisor, [each[0] for each in names])
                    used.setdefault(done, (trainer, node))
                time.sleep(0.2)
            lines = fleet.lines()
    seconds = [line["ended_s"] - line["began_s"] for line in lines[1:]]
    counted = [len(line["active"]) for line in lines[1:]]
    first, last = min(used), max(used)
    messages = max(last - first, 1) * nodes
    return {
        "nodes": nodes,
        "rounds": len(seconds),
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "answers": statistics.mean(counted),
        "trainer_cpu": (used[last][0] - used[first][0]) / messages,
        "node_cpu": (used[last][1] - used[first][1]) / messages,
        "peak_mib": statistics.median(map(max, memory)),
        "usual_mib": statistics.median(map(statistics.median, memory)),
    }


def pss(supervisor: Any, name: str) -> float:
    """What a process has in memory, what it shares counted in part, in MiB."""
    process = supervisor.service(name).pid
    return 0.0 if process is None else usage(process).pss / MIB


def cpu_seconds(supervisor: Any, names: Sequence[str]) -> float:
    """What processes have used so far, together."""
    total = 0.0
    for name in names:
        stat = Path(f"/proc/{supervisor.service(name).pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def plot(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds and memory as bars."""
    figure = new_figure(9.0, 3.4)
    left, right = figure.subplots(1, 2)
    names = [f"{p['nodes']} devices" for p in points]
    for axes, quantity, what in (
        (left, "seconds", "seconds per round"),
        (right, "peak_mib", "peak memory of a device, MiB (PSS)"),
    ):
        for k, point in enumerate(points):
            axes.bar(k, point[quantity], color="#0072B2", edgecolor="black", width=0.7)
            axes.annotate(
                f"{point[quantity]:.3g}", (k, point[quantity]), ha="center", va="bottom", fontsize=9
            )
        axes.set_xticks(range(len(points)), names, fontsize=8)
        axes.set_title(what, fontsize=10)
        tidy(axes)
    save(figure, path)


def report(points: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """A part of RESULTS.md."""
    rows = [
        [
            str(p["nodes"]),
            duration(p["seconds"]),
            f"{duration(p['least'])} to {duration(p['most'])}",
            f"{p['answers']:.1f}",
            duration(p["trainer_cpu"]),
            duration(p["node_cpu"]),
            f"{p['peak_mib']:.0f} MiB",
            f"{p['usual_mib']:.0f} MiB",
        ]
        for p in points
    ]
    heads = ["devices", "per round", "least to most", "answers", "CPU of training"]
    heads += ["CPU of the node", "a device, peak", "median"]
    about = (
        "FedPBC, the paper's CNN for CIFAR-10, 5 steps of 16 per round, all links up; gateway, "
        "server, nodes and trainers as processes on this machine, over loopback, with TLS and node "
        f"keys. Median of {points[0]['rounds']} rounds; CPU seconds are those of one message on "
        "one device; memory is the PSS of all processes of a device, the median of devices."
    )
    parts = [
        "### A real fleet",
        f"{about} {machine_line(machine)}.",
        markdown_table(heads, rows),
        "![the same as bars](results/fleet.png)",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write a table and a plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    parser.add_argument("--nodes", type=int, nargs="*", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    points = []
    for nodes in options.nodes:
        points.append(measure(nodes, options.rounds))
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in points[-1].items()})
    machine = describe()
    write_json(options.out / "fleet.json", {"machine": machine, "points": points})
    text = report(points, machine)
    (options.out / "fleet.md").write_text(text)
    plot(points, options.out / "fleet.png")
    print(text)


if __name__ == "__main__":
    main()
