"""How long the checkpoint of a run takes when each of many clients has a model of its own.

python -m benchmarks.checkpoints                 # 100,000 and 1,000,000 clients
python -m benchmarks.checkpoints 250000 --dimension 50
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from fedpbc.storage.tensors import load_state, peek_state, save_state

__all__ = ["measure"]


def measure(clients: int, dimension: int, folder: Path) -> str:
    """A line of the table: seconds of CPU time, sizes and the additional memory at the peak."""
    random = torch.Generator().manual_seed(0)
    held = [torch.randn(dimension, generator=random) for _ in range(clients)]
    reports = {client: held[-1 - client] for client in range(clients)}
    state = {"server": {"held": held, "reported": reports}, "slots": list(range(clients))}
    path = folder / "checkpoint.safetensors"
    before = peak()
    start = time.process_time()
    save_state(path, state)
    saved = time.process_time()
    added = peak() - before
    peek_state(path)
    peeked = time.process_time()
    loaded = load_state(path)
    seconds = saved - start, time.process_time() - peeked, peeked - saved
    assert all(map(torch.equal, loaded["server"]["held"], held))
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    megabytes = path.stat().st_size / 1e6
    times = " | ".join(f"{value:.2f} s" for value in seconds)
    return (
        f"| {clients:,} | {dimension} | {times} | {megabytes:.0f} MB | {header:,} B | {added} MB |"
    )


def peak() -> int:
    """The largest memory this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--dimension", action="append", type=int)
    options = parser.parse_args()
    print("| clients | dimension | save | load | peek | file | header | memory |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for clients in options.clients:
            for dimension in options.dimension or [10, 100]:
                print(measure(clients, dimension, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
