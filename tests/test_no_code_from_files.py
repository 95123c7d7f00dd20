"""No reader runs code: what can run code from a file or a message is not used.

Each exception is named below with the reason. The list is of the package's whole source, so a new
use is found by this test, wherever it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedpbc

SOURCE = Path(fedpbc.__file__).parent

RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "execfile",
    "exec_module",
    "import_module",
    "run_path",
    "run_module",
    "spec_from_file_location",
    "system",
    "popen",
    "load_module",
}
"""Functions and methods that run code they are given."""
UNPICKLE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
"""Modules that run code in what they read."""
SHARING = "fedpbc.engines.shared_memory"
OWN_UNPICKLERS = {"unpickled", "Unpacker", "unpack"}
"""Names of ``engines/shared_memory.py`` that unpickle: whoever uses them reads pickles, too."""
LOADERS = {
    "torch.load": "weights_only",
    "np.load": "allow_pickle",
    "numpy.load": "allow_pickle",
    "torch.jit.load": "",
    "torch.hub.load": "",
    "yaml.load": "",
    "yaml.unsafe_load": "",
    "yaml.full_load": "",
    "pd.read_pickle": "",
    "pandas.read_pickle": "",
}
"""Readers that unpickle, and the option that forbids it; without one they are not used at all."""

EXCEPTIONS = {
    # The user names these Python files; those of a folder that was sent need --trust.
    ("experiments/plugins.py", "spec_from_file_location"),
    ("experiments/plugins.py", "exec_module"),
    # Modules whose names are in the code, or that begin with the package's own and are in a list.
    ("data/parquet.py", "import_module"),
    ("experiments/tracking/choose.py", "import_module"),
    ("paper/catalog.py", "import_module"),
    # Tasks between a program and its own worker processes, through memory that only they share.
    ("engines/shared_memory.py", "pickle"),
    ("engines/shared_memory.py", "cloudpickle"),
    ("engines/worker.py", "unpickled"),
    ("engines/worker.py", "unpack"),
    # The same through Ray's memory; the cluster is the user's.
    ("engines/ray_store.py", "unpickled"),
    ("engines/ray_store.py", "Unpacker"),
    # The same through a file in a folder that only this user can open, which is checked.
    ("study/pool.py", "unpickled"),
    ("python/compared_runs.py", "unpickled"),
}


def findings(path: Path) -> Iterator[tuple[str, int]]:
    """What a module uses that can run code, with the line."""
    aliases: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name] = alias.name
                if alias.name.split(".")[0] in UNPICKLE:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                if module.split(".")[0] in UNPICKLE:
                    yield module, node.lineno
                if alias.name in OWN_UNPICKLERS and module == SHARING:
                    yield alias.name, node.lineno
                if alias.name in RUNS_CODE or f"{module}.{alias.name}" in LOADERS:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in {"unpickled", "Unpacker"}:
            yield node.attr, node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            # re.compile compiles no code, and a model's eval() only sets its mode.
            harmless = name.endswith(".eval") or (last == "compile" and name != "compile")
            if last in RUNS_CODE and not harmless:
                yield last, node.lineno
            if name in LOADERS and not is_safe(node, LOADERS[name]):
                yield name, node.lineno
            if any(k.arg == "shell" and not is_false(k.value) for k in node.keywords):
                yield "shell", node.lineno
            if any(k.arg == "allow_pickle" and not is_false(k.value) for k in node.keywords):
                yield "allow_pickle", node.lineno


def is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def is_safe(call: ast.Call, option: str) -> bool:
    """Whether a loader is called with the option that forbids code."""
    expected = option == "weights_only"
    return any(
        k.arg == option and isinstance(k.value, ast.Constant) and k.value.value is expected
        for k in call.keywords
    )


MODULES = sorted(SOURCE.rglob("*.py"))


def test_nothing_runs_code_from_a_file_or_a_message():
    found = {
        (str(path.relative_to(SOURCE).as_posix()), name, line)
        for path in MODULES
        for name, line in findings(path)
    }
    assert sorted(use for use in found if use[:2] not in EXCEPTIONS) == []
    # No exception without its use.
    assert {(path, name) for path, name, _ in found} == EXCEPTIONS


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)",
        "exec(text)",
        "import pickle",
        "from pickle import loads",
        "import pickle as p",
        "import shelve",
        "from importlib import import_module",
        "importlib.import_module(name)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=flag)",
        "yaml.load(text)",
        "from fedpbc.engines.shared_memory import unpickled",
        "from fedpbc.engines.shared_memory import Unpacker as Reader",
        "shared_memory.unpickled(content)",
        "os.system(line)",
        "subprocess.run(line, shell=True)",
        "__import__(name)",
    ],
)
def test_each_of_these_would_be_found(tmp_path, line):
    (tmp_path / "module.py").write_text(line)
    assert list(findings(tmp_path / "module.py"))


@pytest.mark.parametrize(
    "line",
    [
        "re.compile(text)",
        "module.eval()",
        "np.load(path, allow_pickle=False)",
        "torch.load(path, weights_only=True)",
        "json.loads(text)",
    ],
)
def test_these_are_harmless(tmp_path, line):
    (tmp_path / "module.py").write_text(line)
    assert not list(findings(tmp_path / "module.py"))
