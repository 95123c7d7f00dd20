"""A run that is not stored: what a report needs of it is kept until it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpbc.experiments.build import Experiment
from fedpbc.experiments.client_overview import client_tensors
from fedpbc.experiments.execution import OnRound
from fedpbc.experiments.integrity import sealed
from fedpbc.experiments.peak_memory import reset_peak_memory
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_summary import run_summary
from fedpbc.simulation.metrics import Metrics
from fedpbc.storage.directories import make_directory
from fedpbc.storage.tensors import save_tensors
from fedpbc.storage.toml import toml_text

__all__ = ["RunRecord", "execute_in_memory"]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The configuration, evaluations, summary and clients of a run; not its models.

    Attributes:
        config: plain values, as in ``config.toml``.
        metrics: one line per evaluation.
        summary: as in ``summary.json``.
        clients: the tensors of ``fleet.safetensors``.
    """

    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    clients: Mapping[str, Tensor]

    def write(self, path: Path) -> None:
        """Write it as a run directory, for a report."""
        directory = RunDirectory(path)
        make_directory(path)
        directory.write_config(toml_text(dict(self.config)), {})
        lines = [json.dumps(line, allow_nan=False) + "\n" for line in self.metrics]
        directory.write_metrics("".join(lines).encode())
        save_tensors(directory.overview_path, dict(self.clients), {"task": ""})
        # A finished run has such a file; a report reads nothing of it.
        save_tensors(directory.final_path, {}, {})
        directory.save_summary(sealed(directory, self.summary))


def execute_in_memory(experiment: Experiment, on_round: OnRound) -> tuple[list[Metrics], RunRecord]:
    """Run all rounds of an experiment without a directory; returns its metrics and its record."""
    config, simulation = experiment.config, experiment.simulation
    metrics = []
    reset_peak_memory()
    with closing(simulation):
        for evaluated in simulation.steps():
            if evaluated is not None:
                metrics.append(evaluated)
            on_round(simulation.round, evaluated)
        lines = [each.as_dict() for each in metrics]
        about = {
            "algorithm": config.algorithm["name"],
            "links": config.links["name"],
            "data": config.task.name,
            "seed": config.general.seed,
            # Never resumed, so it need not be told from other runs.
            "fingerprint": "",
        }
        # While the engine's processes live, whose memory is in it.
        summary = run_summary(about, simulation, experiment.engine, lines[-1], experiment.notes)
    return metrics, RunRecord(config.to_dict(), lines, summary, client_tensors(simulation))
