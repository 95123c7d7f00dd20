"""What the engine "ray" moves between the machines of a cluster, counted and on the wire.

python -m benchmarks.cluster                     two nodes with two CPUs each, and a head
python -m benchmarks.cluster --model resnet20_gn --rounds 10
python -m benchmarks.cluster --cut 2             a node's link is cut after the second evaluation

Each machine is a network namespace on this one, so its interface tells how many bytes it received
and sent, those of Ray's own messages among them. Only root may make namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import cores, describe, family
from benchmarks.network import Host, network
from benchmarks.run import Interrupt, fail, positive
from benchmarks.tables import machine_line, markdown_table, write_json

MB = 10**6
PORT = 6379
START_SECONDS = 120
BIN = Path(sys.executable).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", type=positive, default=2, help="besides the head")
    parser.add_argument("--cpus", type=positive, default=2, help="of each of them, for Ray")
    parser.add_argument("--algorithm", default="fedpbc")
    parser.add_argument("--model", default="cnn_cifar10")
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--clients", type=positive, default=20)
    parser.add_argument(
        "--cut", type=int, default=0, help="a node's link, after so many evaluations"
    )
    parser.add_argument("--out", type=Path, help="folder for cluster.md and cluster.json")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        fail("network namespaces are made by root only")
    with Interrupt(), tempfile.TemporaryDirectory(prefix="fedpbc-cluster") as folder:
        result = measure(options, Path(folder))
    text = section(result)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "cluster.json", result)
        (options.out / "cluster.md").write_text(text)
    print(text)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run on a cluster, and the same one after another."""
    settings = ["--data", options.data, "--model", options.model, "--algorithm", options.algorithm]
    settings += ["--clients", str(options.clients), "--rounds", str(options.rounds)]
    run = [BIN / "fedpbc", "run", *settings, "--json", "--out"]
    with ExitStack() as stack:
        names = ["head", *(f"node{number}" for number in range(1, options.nodes + 1))]
        head, *nodes = stack.enter_context(network(names))
        environment = {
            **os.environ,
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
        }
        address = f"{head.address}:{PORT}"
        start = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
        stack.enter_context(started(head, start, folder, environment))
        for node in nodes:
            start = [f"--address={address}", f"--num-cpus={options.cpus}"]
            stack.enter_context(started(node, start, folder, environment))
        before = wire(nodes)
        command = head.command(*run, folder / "on-ray", "--engine", "ray", "--ray-address", address)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            if options.cut:
                await_evaluations(folder / "on-ray" / "metrics.jsonl", options.cut, process)
                nodes[-1].cut()
            output, _ = process.communicate()
        after = wire(nodes)
    if process.returncode:
        fail("the run on the cluster failed")
    summary = json.loads(output)
    serial = [*run, folder / "serial", "--engine", "serial"]
    reference = json.loads(subprocess.check_output(serial, text=True))
    models = [(folder / name / "final.safetensors").read_bytes() for name in ("on-ray", "serial")]
    return {
        "machine": describe(),
        "command": " ".join(settings),
        "nodes": options.nodes,
        "cpus": options.cpus,
        "cores": len(cores()),
        "cut": options.cut,
        "parameters": summary["parameters"],
        "rounds": summary["rounds"],
        "cluster": summary["cluster"],
        "wire": {way: after[way] - before[way] for way in after},
        "same_bits": models[0] == models[1],
        "seconds": {"ray": summary["seconds"], "serial": reference["seconds"]},
    }


@contextmanager
def started(
    host: Host, options: Sequence[str], folder: Path, environment: dict[str, str]
) -> Iterator[None]:
    """Ray on a host."""
    ray = [BIN / "ray", "start", "--block", f"--node-ip-address={host.address}", *options]
    log = folder / f"{host.namespace}.log"
    with log.open("w") as file:
        command = host.command(*ray, "--object-store-memory=300000000")
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        end = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                fail(f"Ray did not start on {host.namespace}: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        for member in family(process.pid):
            member.signal(signal.SIGKILL)
        process.wait()


def await_evaluations(metrics: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has made so many."""
    while process.poll() is None:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= count:
            return
        time.sleep(0.05)


def wire(nodes: Sequence[Host]) -> dict[str, int]:
    """What the interfaces of the nodes have received and sent."""
    return {
        way: sum(node.bytes(key) for node in nodes) for way, key in (("in", "rx"), ("out", "tx"))
    }


def section(result: dict[str, Any]) -> str:
    """A part of RESULTS.md."""
    moved, on_wire = result["cluster"], result["wire"]
    lines = [
        [
            "to the nodes",
            f"{(moved['bytes_data'] + moved['bytes_out']) / MB:.2f}",
            f"{moved['bytes_data'] / MB:.2f}",
            f"{moved['bytes_out'] / MB:.2f}",
            f"{on_wire['in'] / MB:.2f}",
        ],
        [
            "from the nodes",
            f"{moved['bytes_back'] / MB:.2f}",
            "",
            f"{moved['bytes_back'] / MB:.2f}",
            f"{on_wire['out'] / MB:.2f}",
        ],
    ]
    heads = ["MB", "counted", "of it data", "of it models", "on the wire"]
    about = (
        f"`fedpbc run {result['command']}` ({result['parameters']:,} parameters) on "
        f"{result['nodes']} nodes with {result['cpus']} CPUs each and a head without, all on "
        f"{result['cores']} cores: {moved['segments']} segments, "
        f"{moved['bytes_per_round'] / MB:.2f} MB of models per round, "
        f"{'the same' if result['same_bits'] else 'OTHER'} bits as `serial`; "
        f"{result['seconds']['ray']:.1f} s, `serial` {result['seconds']['serial']:.1f} s."
    )
    if result["cut"]:
        about += (
            f" The link of one node was cut in the middle: {moved['nodes_lost']} node lost, "
            f"{moved['segments_repeated']} segments run again."
        )
    table = markdown_table(heads, lines)
    return f"### Cluster\n\n{about} {machine_line(result['machine'])}.\n\n{table}\n"


if __name__ == "__main__":
    main()
