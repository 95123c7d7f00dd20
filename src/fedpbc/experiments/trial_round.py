"""A first round of what is to take the place of earlier results, before these are removed.

Some faults show only when a run has begun: a cluster that does not answer, a state that cannot be
saved, numbers that are too large for a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.errors import DivergedError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.execution import StoppedError, Watcher
from fedpbc.experiments.run_directory import STAGING, RunDirectory
from fedpbc.experiments.start import start_run
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.directories import LOCK
from fedpbc.storage.removal import remove_empty_folder, remove_files

__all__ = ["clear_trial_round", "run_trial_round"]


def run_trial_round(folder: Path, configs: Sequence[Mapping[str, Any]]) -> None:
    """Run one round of each configuration in a folder of results, and remove it again.

    Raises what the first of them fails with. Runs that diverge at once are no reason to stop as
    long as there are others.
    """

    def stop(done: int, metrics: Metrics | None) -> None:
        raise StoppedError("stopped after its first round")

    RunDirectory(folder).check_folders()
    run, diverged = RunDirectory(folder / STAGING), []
    for values in configs:
        config = Config.from_dict({**values, "track": []}, lenient=True)
        try:
            start_run(config, run.path, watcher=Watcher(on_round=stop))
        except StoppedError:
            pass
        except DivergedError as error:
            diverged.append(error)
        finally:
            clear_trial_round(folder)
    if diverged and len(diverged) == len(configs):
        raise diverged[0]


def clear_trial_round(folder: Path) -> None:
    """Remove what a trial round left there that was killed, or whose disk failed."""
    run = RunDirectory(folder / STAGING)
    if run.path.is_dir() and not run.path.is_symlink():
        run.clear()
        remove_files(run.path, [LOCK])
        remove_empty_folder(run.path)
