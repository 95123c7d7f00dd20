"""A real fleet over Flower: how long a round takes, and what a node needs; thin client or not.

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
OURS = "fedpbc.deployment.device.client_app:app"
USUAL = "benchmarks.torch_client:app"
CLIENTS = {"thin": OURS, "imports torch": USUAL}
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


def measure(nodes: int, client: str, rounds: int) -> dict[str, Any]:
    """One fleet, all links up."""
    from fedpbc.deployment.ops import flower_commands
    from fedpbc.deployment.ops.local_fleet import LocalFleet

    flower_commands.APP["tool"]["flwr"]["app"]["components"]["clientapp"] = CLIENTS[client]
    # The usual client's app is imported by Flower's processes.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {
        "rounds": rounds,
        "clients": nodes,
        "fleet": {"round_seconds": 300.0, "wait_for": nodes},
    }
    memory: list[list[float]] = [[] for _ in range(nodes)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "app.py").write_text(APP)
        with LocalFleet(root / "fleet", settings, app=root / "app.py") as fleet:
            fleet.start()
            if client != "thin":
                for k in range(nodes):
                    fleet.supervisor.stop(f"trainer-{k}")
            while not fleet.step():
                # The first round begins with caches that are empty.
                if fleet.lines():
                    for k in range(nodes):
                        memory[k].append(node_memory(fleet.supervisor, k))
                time.sleep(0.2)
            lines = fleet.lines()
    seconds = [line["ended_s"] - line["began_s"] for line in lines[1:]]
    counted = [len(line["active"]) for line in lines[1:]]
    return {
        "nodes": nodes,
        "client": client,
        "rounds": len(seconds),
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "answers": statistics.mean(counted),
        "peak_mib": statistics.median(map(max, memory)),
        "usual_mib": statistics.median(map(statistics.median, memory)),
    }


def node_memory(supervisor: Any, client: int) -> float:
    """What all processes of a node have in memory, what they share counted once, in MiB."""
    total = 0
    for name in (f"supernode-{client}", f"trainer-{client}"):
        process = supervisor.service(name).pid
        total += 0 if process is None else usage(process).pss
    return total / MIB


def plot(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds and memory as bars."""
    figure = new_figure(9.0, 3.4)
    left, right = figure.subplots(1, 2)
    names = [f"{p['nodes']} nodes\n{p['client']}" for p in points]
    styles = {"thin": ("#0072B2", ""), "imports torch": ("#BBBBBB", "///")}
    for axes, quantity, what in (
        (left, "seconds", "seconds per round"),
        (right, "peak_mib", "peak memory of a node, MiB (PSS)"),
    ):
        for k, point in enumerate(points):
            colour, hatch = styles[point["client"]]
            axes.bar(k, point[quantity], color=colour, hatch=hatch, edgecolor="black", width=0.7)
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
            p["client"],
            duration(p["seconds"]),
            f"{duration(p['least'])} to {duration(p['most'])}",
            f"{p['answers']:.1f}",
            f"{p['peak_mib']:.0f} MiB",
            f"{p['usual_mib']:.0f} MiB",
        ]
        for p in points
    ]
    heads = ["nodes", "client", "per round", "least to most", "answers", "a node, peak", "median"]
    about = (
        "FedPBC, the paper's CNN for CIFAR-10, 5 steps of 16 per round, all links up; SuperLink, "
        "gateway, server app, SuperNodes and trainers as processes on this machine, over loopback, "
        f"with TLS and node keys. Median of {points[0]['rounds']} rounds; memory is the PSS of "
        "all processes of a node, the median of nodes."
    )
    parts = [
        "### A real fleet over Flower",
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
        for client in CLIENTS:
            points.append(measure(nodes, client, options.rounds))
            print({k: round(v, 1) if isinstance(v, float) else v for k, v in points[-1].items()})
    machine = describe()
    write_json(options.out / "fleet.json", {"machine": machine, "points": points})
    text = report(points, machine)
    (options.out / "fleet.md").write_text(text)
    plot(points, options.out / "fleet.png")
    print(text)


if __name__ == "__main__":
    main()
