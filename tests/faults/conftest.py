from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.scenarios import SCENARIOS, SLOW_SCENARIOS, Scenario
from tests.killed import Server


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs commands whose disk has faults, or that are killed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the faults are a small C library, and there is no compiler")
    library = tmp_path_factory.mktemp("library") / "disk_faults.so"
    source = Path(__file__).with_name("disk_faults.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60
    )
    server = Server(library)
    yield server
    server.close()


@pytest.fixture(scope="session")
def undisturbed(
    faulty: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Scenario, Path, Path]]:
    """A scenario, the folder before its command, and after it if nothing happens."""
    folders: dict[str, tuple[Path, Path]] = {}

    def find(name: str) -> tuple[Scenario, Path, Path]:
        scenario = (SCENARIOS | SLOW_SCENARIOS)[name]
        if name not in folders:
            root = tmp_path_factory.mktemp("undisturbed")
            before = scenario.prepared(faulty, root / "before")
            after = scenario.copied(before, root / "after")
            ended = faulty.run(*scenario.arguments(after))
            assert (ended.code, ended.err) == (0, "")
            folders[name] = before, after
        return scenario, *folders[name]

    return find
