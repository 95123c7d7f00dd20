"""The notebooks run, and what they show is small."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    tool = runpy.run_path(str(FOLDER.parents[1] / "tools" / "notebooks.py"))
    # Without the user's settings, and with nothing left behind.
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for file in FOLDER.glob("*.csv"):
        shutil.copy(file, tmp_path)
    notebook = tool["executed"](path, tmp_path)
    results = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert results
    assert not [output for output in results if output["output_type"] == "error"]


def test_there_are_three_and_they_are_small():
    assert {path.stem for path in NOTEBOOKS} == {"own-data", "own-algorithm", "fleet-log"}
    assert all(path.stat().st_size < 150_000 for path in NOTEBOOKS)
