"""The final models of a run, read back."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from fedpbc import InputError, load_view
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.tasks.parameter_layout import Layout


@pytest.fixture
def run(tmp_path):
    """A run with final models and, as far as ``load_view`` knows, without a summary."""
    (tmp_path / "run").mkdir()
    run = RunDirectory(tmp_path / "run")
    run.save_final({"server": torch.ones(6)}, Layout(("weight",), ((2, 3),)))
    return run


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.timeout(60)
def test_what_is_no_file_of_the_folder_is_refused(run, tmp_path, kind, finished):
    assert load_view(run.path, "server")["weight"].shape == (2, 3)
    if finished:
        run.summary_path.write_text("{}")
    run.final_path.rename(tmp_path / "outside")
    if kind == "link":
        run.final_path.symlink_to(tmp_path / "outside")
    elif kind == "pipe":
        os.mkfifo(run.final_path)
    else:
        run.final_path.mkdir()
    with pytest.raises(InputError, match="cannot be read: it is not a regular file") as refusal:
        load_view(run.path, "server")
    assert "\n" not in str(refusal.value)


def test_one_that_is_missing_is_one_line(tmp_path):
    with pytest.raises(InputError, match="is the run finished"):
        load_view(tmp_path, "server")


@pytest.mark.parametrize(
    "parameters",
    ["[" * 3000, "3", "[3]", '[{"name": "weight"}]', '[{"name": "weight", "shape": [2, 2]}]', "{}"],
)
def test_a_file_that_no_run_wrote_is_one_line(run, parameters):
    save_file({"server": torch.ones(6)}, run.final_path, {"parameters": parameters})
    with pytest.raises(InputError, match=r"is the run finished|a vector of \d numbers"):
        load_view(run.path, "server")
