"""The paper's figures and tables as experiments: one module each, named as in ``fedpbc paper``."""

from __future__ import annotations

from fedpbc.paper.experiment import EXPERIMENTS, Made, Wanted, default_folder, make

__all__ = ["EXPERIMENTS", "Made", "Wanted", "default_folder", "make"]
