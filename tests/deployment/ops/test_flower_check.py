"""Which versions of Flower a fleet accepts."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from packaging.requirements import Requirement

from fedpbc.deployment.ops import flower_check
from fedpbc.deployment.ops.flower_check import require_flower
from fedpbc.errors import FedpbcError, MissingExtraError
from fedpbc.flower.supported import SUPPORTED

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("version", ["1.40.9", "1.43.0", "2.0.0"])
def test_other_versions_are_refused_by_name(version, monkeypatch):
    monkeypatch.setattr(flower_check, "version", lambda name: version)
    line = rf"a fleet needs Flower 1\.41 or 1\.42, but {version} is installed: pip install"
    with pytest.raises(FedpbcError, match=line):
        require_flower()


def test_without_flower_the_extra_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(flower_check, "version", missing)
    with pytest.raises(MissingExtraError, match=r"fedpbc\[flower\]"):
        require_flower()


def test_fleets_strategies_and_the_extra_agree():
    assert flower_check.SUPPORTED == SUPPORTED
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["flower"]
    [allowed] = [r.specifier for r in map(Requirement, extra) if r.name == "flwr"]
    first, last = SUPPORTED[0], SUPPORTED[-1]
    assert all(f"{version}.0" in allowed for version in SUPPORTED)
    minor = int(last.split(".")[1])
    assert f"1.{minor + 1}.0" not in allowed
    assert f"1.{int(first.split('.')[1]) - 1}.9" not in allowed
