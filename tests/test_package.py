"""The public surface."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import fedpbc
import fedpbc.algorithms

PUBLIC: list[str] = vars(fedpbc)["__all__"]


def test_every_public_name_is_there():
    namespace: dict[str, object] = {}
    exec("from fedpbc import *", namespace)
    namespace.pop("__builtins__")
    assert sorted(namespace) == sorted(PUBLIC)
    assert len(set(PUBLIC)) == len(PUBLIC)


def test_every_name_is_public_in_its_module():
    stub = Path(fedpbc.__file__).with_suffix(".pyi").read_text()
    lines = re.findall(r"^from \.([\w.]+) import \w+ as (\w+)$", stub, re.M)
    names = {name: home for home, name in lines}
    assert {*names, "theory"} == set(PUBLIC)
    for name, home in names.items():
        module = import_module(f"fedpbc.{home}")
        assert getattr(module, name) is getattr(fedpbc, name)
        assert name in module.__all__


def test_public_functions_and_classes_are_documented():
    for name in PUBLIC:
        found = getattr(fedpbc, name)
        if callable(found):
            assert (found.__doc__ or "").strip(), name


def test_an_unknown_name_is_said():
    with pytest.raises(AttributeError, match="simulat"):
        fedpbc.simulat  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="simulat"):
        exec("from fedpbc import simulat")


def test_what_there_is_can_be_looked_up():
    assert set(PUBLIC) <= set(dir(fedpbc))


def test_the_version_is_the_projects():
    project = Path(fedpbc.__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("the package is installed without its sources")
    assert version("fedpbc") == tomllib.loads(project.read_text())["project"]["version"]


def test_types_are_shipped():
    assert Path(fedpbc.__file__).with_name("py.typed").is_file()


def test_importing_the_package_is_quick():
    code = "import fedpbc, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False False\n"
    code = "import sys; from fedpbc import FedpbcError, ALGORITHMS; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_a_module_may_be_called_the_way_python_calls_it():
    ended = subprocess.run(
        [sys.executable, "-m", "fedpbc.cli.app", "--help"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "compare" in ended.stdout


def test_the_papers_publication_is_cited():
    root = Path(__file__).parents[1]
    cited = (root / "CITATION.cff").read_text().partition("preferred-citation:")[2]
    for line in ("journal: IEEE Transactions on Signal Processing", "volume: 73", "year: 2025"):
        assert f"\n  {line}\n" in cited
    assert "\n  start: 766\n  end: 780\n" in cited
    assert "preprint" not in cited
    assert "Signal\nProcessing 73, 2025" in (root / "README.md").read_text()
    assert "IEEE TSP 2025" in fedpbc.algorithms.find_algorithm("fedpbc").paper
