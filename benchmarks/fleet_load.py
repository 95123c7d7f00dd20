"""How many devices a server of this machine takes: seconds, CPU seconds and memory per round.

    python -m benchmarks.fleet_load --devices 200 1000 --parameters 10000

A real server (gateway and server process, TLS, keys) with simulated devices, which reply at once:
see :mod:`benchmarks.simulated_devices`. The devices' own process is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.machine import describe
from benchmarks.simulated_devices import SimulatedDevice, run_devices
from benchmarks.tables import duration, machine_line, markdown_table, write_json

MIB = 2**20
APP = """
from torch import nn

def model():
    return nn.Linear({width}, 10)

def data(client):
    raise RuntimeError("simulated devices do not train")
"""


def write_server(folder: Path, devices: int, rounds: int, parameters: int) -> None:
    """Write a server's folder, and the devices' keys beside it."""
    from fedpbc.deployment.address import LOOPBACK, free_port
    from fedpbc.deployment.security.keys import make_certificates, make_node_key

    server = folder / "server"
    (server / "keys").mkdir(parents=True)
    make_certificates(server / "certificates", [LOOPBACK])
    for client in range(devices):
        key = make_node_key(folder / "devices", f"{client}.key")
        key.with_name(f"{client}.key.pub").replace(server / "keys" / f"client-{client}.pub")
    (server / "app.py").write_text(APP.format(width=parameters // 10 - 1))
    fleet = {
        "app": "app.py",
        "round_seconds": 300.0,
        "wait_for": devices,
        "listen": f"{LOOPBACK}:{free_port()}",
    }
    settings = {"rounds": rounds, "clients": devices, "fleet": fleet}
    (server / "fleet.toml").write_text(tomli_w.dumps(settings))


def run_load(folder: Path, address: tuple[str, int], numbers: Sequence[int]) -> None:
    """Run some of the devices until the process is terminated."""
    tls = ssl.create_default_context(cafile=str(folder / "server" / "certificates" / "ca.crt"))
    keys = [folder / "devices" / f"{number}.key" for number in numbers]
    asyncio.run(run_devices([SimulatedDevice(address, tls, key) for key in keys]))


def measure(devices: int, rounds: int, parameters: int, processes: int) -> dict[str, Any]:
    """One fleet, whose devices reply at once."""
    from fedpbc.deployment.ops.server_processes import ServerProcesses
    from fedpbc.deployment.ops.supervisor import Supervisor, log_to_files
    from fedpbc.deployment.server.round_log import read_rounds

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_server(folder, devices, rounds, parameters)
        before: dict[int, dict[str, float]] = {}
        with Supervisor(log_to_files(folder / "logs")) as supervisor:
            server = ServerProcesses(folder / "server", supervisor)
            server.start()
            address = server.listen.host, server.listen.port
            load = [
                multiprocessing.Process(
                    target=run_load,
                    args=(folder, address, range(k, devices, processes)),
                    daemon=True,
                )
                for k in range(processes)
            ]
            for process in load:
                process.start()
            try:
                while True:
                    is_done = server.step()
                    done = len(list(read_rounds(folder / "server")))
                    if is_done:
                        break
                    if server_exits(supervisor):
                        raise RuntimeError(f"a process has failed: {server_exits(supervisor)}")
                    if done < rounds:
                        if done not in before:
                            before[done] = cpu_seconds(supervisor)
                        peak = peak_memory(supervisor)
                    time.sleep(0.1)
                lines = [line for _, line in read_rounds(folder / "server")]
            finally:
                for process in load:
                    process.terminate()
                    process.join()
    # The first round begins while devices still connect.
    seconds = [line["ended_s"] - line["began_s"] for line in lines[1:]]
    first, last = min(k for k in before if k > 0), max(before)
    cpu = {
        name: (before[last][name] - before[first][name]) / max(last - first, 1)
        for name in ("server", "gateway")
    }
    return {
        "devices": devices,
        "parameters": parameters,
        "rounds": len(seconds),
        "seconds": statistics.median(seconds),
        "most": max(seconds),
        "counted": min(len(line["active"]) for line in lines),
        "cpu": cpu,
        "peak_mib": peak,
        "load": os.getloadavg()[0],
    }


def server_exits(supervisor: Any) -> str:
    """The last output of processes that have ended with an error."""
    services = [supervisor.service(name) for name in ("server", "gateway")]
    return " / ".join(" ".join(each.last_output[-5:]) for each in services if each.exit_code)


def cpu_seconds(supervisor: Any) -> dict[str, float]:
    """What the server's processes have used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for name in ("server", "gateway"):
        stat = Path(f"/proc/{supervisor.service(name).pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / ticks
    return used


def peak_memory(supervisor: Any) -> dict[str, float]:
    """The largest resident size of each process so far, in MiB."""
    peaks = {}
    for name in ("server", "gateway"):
        for line in Path(f"/proc/{supervisor.service(name).pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                peaks[name] = int(line.split()[1]) / 1024
    return peaks


def report(points: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """A part of RESULTS.md."""
    heads = ["devices", "parameters", "per round", "most", "counted", "CPU server", "CPU gateway"]
    rows = [
        [
            f"{p['devices']:,}",
            f"{p['parameters']:,}",
            duration(p["seconds"]),
            duration(p["most"]),
            f"{p['counted']:,} of {p['devices']:,}",
            f"{p['cpu']['server']:.1f} s",
            f"{p['cpu']['gateway']:.1f} s",
            f"{p['peak_mib']['server']:.0f} + {p['peak_mib']['gateway']:.0f} MiB",
            f"{p['load']:.1f}",
        ]
        for p in points
    ]
    about = (
        "A real server with TLS and node keys; simulated devices in other processes of the same "
        "machine reply at once with the model that they get. CPU seconds are those of one round; "
        "the load is that of the machine, which other work shared."
    )
    table = markdown_table([*heads, "peak memory", "load"], rows)
    return "\n\n".join(["### Devices per server", f"{about} {machine_line(machine)}.", table])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=1, help="of the simulated devices")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    points = [
        measure(devices, options.rounds, options.parameters, options.processes)
        for devices in options.devices
    ]
    machine = describe()
    print(report(points, machine))
    if options.out is not None:
        write_json(options.out, {"machine": machine, "points": points})


if __name__ == "__main__":
    main()
