from __future__ import annotations

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.run_identity import check_same_run
from fedpbc.experiments.start import start_run
from fedpbc.experiments.sweep import GridCell, run_grid


@pytest.fixture
def values(tmp_path):
    np.save(tmp_path / "targets.npy", np.array([[0.0], [1.0], [5.0]]))
    return {
        "rounds": 3,
        "task": {"targets": str(tmp_path / "targets.npy")},
        "links": {"name": "bernoulli", "p": 0.5},
    }


@pytest.fixture
def run(tmp_path, values):
    start_run(Config.from_dict(values), tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def test_the_same_run_executed_otherwise_and_its_files_elsewhere(run, values, tmp_path):
    # The number of clients stands in the run's configuration only: the targets decide it.
    check_same_run(run, Config.from_dict({**values, "checkpoint_every": 1}))
    (tmp_path / "targets.npy").rename(tmp_path / "moved.npy")
    values["task"]["targets"] = str(tmp_path / "moved.npy")
    check_same_run(run, Config.from_dict(values))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("seed", {"seed": 1}),
        ("rounds", {"rounds": 4}),
        ("links.p", {"links": {"name": "bernoulli", "p": 0.4}}),
        ("algorithm.name", {"algorithm": "mifa"}),
    ],
)
def test_another_run(run, values, key, change):
    with pytest.raises(InputError, match=f"holds another run, with another {key}; remove it"):
        check_same_run(run, Config.from_dict({**values, **change}))


def test_another_input(run, values, tmp_path):
    np.save(tmp_path / "targets.npy", np.array([[0.0], [1.0], [6.0]]))
    with pytest.raises(InputError, match=r"another inputs/task-targets\.npy"):
        check_same_run(run, Config.from_dict(values))


def test_a_sweep_does_not_take_another_run_for_its_own(run, values):
    before = run.metrics_bytes()
    cell = GridCell(run.path, {**values, "train": {"learning_rate": 0.01}})
    [failure] = run_grid([cell], 1, lambda progress: None)
    assert failure == (
        f"{run.path} holds another run, with another train.learning_rate; remove it, or choose a "
        "new folder"
    )
    assert run.metrics_bytes() == before
