"""A finished run that was not stored: what a report needs of it, until it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from fedpbc.experiments.build import Experiment
from fedpbc.experiments.client_overview import client_tensors
from fedpbc.experiments.integrity import sealed
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.storage.directories import make_directory
from fedpbc.storage.tensors import save_tensors
from fedpbc.storage.toml import toml_text

__all__ = ["RunRecord"]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The configuration, evaluations, summary and clients of a run; not its models.

    Attributes:
        config: plain values, as in ``config.toml``.
        metrics: one line per evaluation.
        summary: as in ``summary.json``, without checksums.
        clients: the tensors of ``fleet.safetensors``.
    """

    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    clients: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        metrics: Sequence[Mapping[str, Any]],
        cost: Mapping[str, Any],
    ) -> RunRecord:
        """The record of an experiment that has ended."""
        config, simulation = experiment.config, experiment.simulation
        last = metrics[-1]
        summary = {
            "algorithm": config.algorithm["name"],
            "links": config.links["name"],
            "data": config.task.name,
            "seed": config.general.seed,
            # Never resumed, so it need not be told from other runs.
            "fingerprint": "",
            "rounds": simulation.rounds,
            "clients": simulation.task.clients,
            "parameters": simulation.task.layout.dimension,
            "views": last["views"],
            "cost": dict(cost),
            "engine": experiment.engine,
            "seconds": last["seconds"],
            "versions": {"fedpbc": version("fedpbc"), "torch": version("torch")},
        }
        return cls(config.to_dict(), list(metrics), summary, client_tensors(simulation))

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
