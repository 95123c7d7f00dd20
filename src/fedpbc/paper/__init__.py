"""The paper's figures and tables as experiments: one module each, named as in ``fedpbc paper``."""

from __future__ import annotations

from fedpbc.paper.catalog import EXPERIMENTS, ExperimentRequest, ExperimentResult, make

__all__ = ["EXPERIMENTS", "ExperimentRequest", "ExperimentResult", "make"]
