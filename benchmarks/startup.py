"""From the command to the first round: how long a run takes to start.

python -m benchmarks.startup                                  # embedded data
python -m benchmarks.startup --data cifar10 --data-dir FOLDER # pictures from Parquet files

Cold: nothing of the package, its libraries or the data is in the system's cache (this needs root;
without, only what was decoded before is removed). First: the files are in the cache, pictures have
not been decoded before. Again: as a user finds it from the second run on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.run import Interrupt, fail
from benchmarks.tables import duration, machine_line, markdown_table

DROP = Path("/proc/sys/vm/drop_caches")
# The command itself, stopped when its first round begins.
PROGRAM = """
import os, sys
from fedpbc.simulation import loop

def begun(self, *arguments):
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    os._exit(0)

loop.Simulation._run_round = begun
from fedpbc.cli import main
main()
"""


def seconds_to_first_round(options: list[str], cache: Path) -> float:
    """Seconds from the start of the process to the beginning of round 1."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM, "run", *options, "--out", f"{folder}/run"]
        environment = {**os.environ, "FEDPBC_CACHE": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        began = time.perf_counter()
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - began
    if "begun" not in ended.stdout:
        fail(f"the run did not begin: {ended.stderr.strip().splitlines()[-1:]}")
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    options = ["--data", given.data, "--algorithm", "fedavg", "--rounds", "300"]
    options += ["--data-dir", given.data_dir] if given.data_dir else []
    lines = []
    with Interrupt(), tempfile.TemporaryDirectory() as folder:
        for kind in ("cold", "first", "again"):
            seconds = []
            for repeat in range(given.repeats):
                cache = Path(folder) / ("kept" if kind == "again" else f"{kind}-{repeat}")
                if kind == "cold" and os.access(DROP, os.W_OK):
                    os.sync()
                    DROP.write_text("3")
                if kind == "again" and not repeat:
                    seconds_to_first_round(options, cache)
                seconds.append(seconds_to_first_round(options, cache))
            spread = f"{duration(min(seconds))} to {duration(max(seconds))}"
            lines.append([kind, duration(statistics.median(seconds)), spread])
    heads = [f"fedpbc run {' '.join(options[:2])}", "to the first round", "least to most"]
    print(f"{machine_line(describe())}; repetitions: {given.repeats}.\n")
    print(markdown_table(heads, lines))


if __name__ == "__main__":
    main()
