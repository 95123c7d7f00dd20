"""Blocks of the documentation that are parts of something larger: code with names from elsewhere,
and TOML files. The rest of them is a stand-in here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.settings import read_fleet
from fedpbc.experiments.comparison_plan import parse_plan
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import configuration_values
from tests.doc_blocks import PAGES, ROOT, blocks, fragments, python_blocks
from tests.tasks.test_dataset_samples import Columns

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_fragment_is_run():
    # Those of Flower in tests/flower/test_documentation.py.
    counts = {page.stem: len(fragments(page)) for page in PAGES if fragments(page)}
    assert counts == {"deployment": 1, "flower": 4, "how-to": 1}


def test_a_dataset_of_the_hub(monkeypatch):
    from fedpbc import Supervised, simulate

    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(28 * 28, 10)

        def forward(self, x):
            return self.layer(x.flatten(1) / 255)

    def load_dataset(name):
        assert name == "ylecun/mnist"
        pixels = np.random.default_rng(0).integers(0, 256, size=(300, 28, 28), dtype=np.uint8)
        part = Columns({"image": pixels, "label": np.arange(300) % 10})
        return {"train": part, "test": part}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (block,) = fragments(DOCS / "how-to.md")
    names = block.run({"Supervised": Supervised, "module": Images()})
    assert simulate(names["task"], "fedavg", "always", rounds=2).accuracy() > 0


def test_a_fleets_model_is_loaded():
    from safetensors.torch import save_file

    source, module = nn.Linear(3, 2), nn.Linear(3, 2)
    Path("server/models").mkdir(parents=True)
    save_file(dict(source.state_dict()), "server/models/reported.safetensors")
    (block,) = fragments(DOCS / "deployment.md")
    block.run({"module": module})
    assert module.weight.equal(source.weight)


TOML = [(page, block) for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), TOML, ids=lambda part: getattr(part, "stem", ""))
def test_a_toml_file_is_right(page, block):
    file = Path("file.toml")
    file.write_text(block.text, encoding="utf-8")
    Path("mine.py").write_text("")
    if "device.toml" in block.text:
        assert read_device(file).client == 3
    elif "[fleet]" in block.text:
        assert read_fleet(file).fleet.wait_for == 10
    elif "[algorithms." in block.text:
        plugin = next(b for b in python_blocks(DOCS / "algorithms.md") if "FedAdam" in b.text)
        Path("fedadam.py").write_text(plugin.text, encoding="utf-8")
        plan = parse_plan(configuration_values(file))
        assert len(plan.entries) == 6
        for label in plan.entries:
            plan.checked(label)
    else:
        np.save("targets.npy", [[0.0], [8.0]])
        np.save("timetable.npy", [[1, 1], [0, 1]])
        Config.from_dict(configuration_values(file))
