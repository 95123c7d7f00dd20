"""FLGo: its FedAvg on a benchmark generated from our data, as its documentation has it.

One client after another as FLGo comes, with its own default of one thread, or several at a time
(its option ``num_parallels``). Between blocks the server waits in
``iterate``. FLGo shares the samples out itself, evenly and at random.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.work import FOLDER, Prepared

ENDLESS = 10**9


def main() -> None:
    """Take the folder of the work and the number of processes from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    # FLGo reads the command line too.
    sys.argv[1:] = []
    work = Prepared.read(options.folder).work
    os.environ[FOLDER] = str(options.folder)
    home = options.folder / f"flgo-{options.parallel}"
    home.mkdir()
    os.chdir(home)
    sys.path.insert(0, str(home))

    import flgo
    import flgo.benchmark.partition

    from benchmarks.peers import flgo_algorithm
    from benchmarks.protocol import QuitError

    config = Path(__file__).with_name("flgo_config.py")
    name = flgo.gen_benchmark_from_file("pictures", str(config), data_type="general")
    flgo.gen_task_by_(
        importlib.import_module(name),
        flgo.benchmark.partition.IIDPartitioner(num_clients=work.clients),
        task_path="task",
    )
    about = {name: version(name) for name in ("flgo", "torch")} | {
        "clients at a time": options.parallel
    }
    flgo_algorithm.begin(work, about)
    runner = flgo.init(
        "task",
        flgo_algorithm,
        {
            "num_rounds": ENDLESS,
            "num_steps": work.local_steps,
            "batch_size": work.batch_size,
            "learning_rate": work.learning_rate,
            "drop_last": True,
            "train_holdout": 0.0,
            "eval_interval": -1,
            "no_tqdm": True,
            "num_parallels": options.parallel,
            # Threads. Its processes would be sent the whole server with every client, seconds each
            # time, and its third way, Ray, asks for a share of a GPU.
            "parallel_type": "t",
        },
    )
    try:
        runner.run()
    except QuitError:
        return


if __name__ == "__main__":
    main()
