"""The deployment guide and the quick start of Flower apps, followed from an empty folder.

Every `sh` block of the guide runs, in its order, in one folder that begins empty: no step is needed
that is not in it. The commands that run at the same time, each in a terminal of its own, are
started together. What a fleet on several machines needs besides (`scp`, `systemctl`) is in the
README that `fleet init` writes, and is not run here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from fedpbc.deployment.address import free_port
from tests.doc_blocks import ROOT, Block, blocks
from tests.flower.test_real_flower import (
    START_LOCAL_SUPERLINK,
    environment,
    stop_local_superlink,
)
from tests.processes import child

LONG = 900.0
TERMINAL = re.compile(r"fedpbc fleet (server|device) ")


def section(page: Path, title: str) -> list[Block]:
    """The `sh` blocks of a page from a heading to the next of its level or above."""
    level = title.index(" ")
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = lines.index(title)
    heads = (k for k in range(begin + 1, len(lines)) if re.match(rf"#{{1,{level}}} ", lines[k]))
    end = next(heads, len(lines))
    return [b for b in blocks(page) if b.language == "sh" and begin < b.line <= end]


def in_words(blocks: list[Block]) -> list[str]:
    return [line for block in blocks for line in block.text.splitlines()]


GUIDE = ROOT / "docs" / "deployment.md"
SETUP, STATUS = "## Setting up a fleet", "## Status"
CHECK = "## Checking against the simulator"


def test_the_blocks_of_a_section():
    """The quick sibling: what the long test runs is what the guide says, all of it."""
    lines = in_words(section(GUIDE, SETUP))
    assert lines[0] == "fedpbc fleet init trial --clients 2 --host localhost --rounds 20"
    assert [line.split()[2] for line in lines if TERMINAL.match(line)] == ["server"] + [
        "device"
    ] * 2
    assert any(line.startswith("fedpbc fleet renew") for line in lines)
    assert in_words(section(GUIDE, CHECK)) == ["fedpbc fleet check server"]
    assert len(in_words(section(GUIDE, STATUS))) == 5
    # Subsections belong to their section, and nothing else does.
    assert not set(in_words(section(GUIDE, "## Security"))) & set(lines)


class Terminal:
    """A shell in a folder, of somebody who has installed the package and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        home = folder.parent / "home"
        home.mkdir()
        self.environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
        if "TMPDIR" in os.environ:
            self.environment["TMPDIR"] = os.environ["TMPDIR"]

    def run(self, line: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert ended.returncode == 0, (line, ended.stdout[-3000:], ended.stderr[-3000:])
        return ended.stdout

    def run_together(self, lines: list[str]) -> None:
        """Each in a terminal of its own: the server ends, devices are stopped with Ctrl-C."""
        with ExitStack() as stack:
            running = []
            for k, line in enumerate(lines):
                log = stack.enter_context((self.folder.parent / f"terminal-{k}.log").open("w"))
                options = {"stdout": log, "stderr": log, "env": self.environment}
                command = ["bash", "-c", f"exec {line}"]
                running.append(stack.enter_context(child(command, cwd=self.folder, **options)))
            server, *devices = running
            assert server.wait(LONG) == 0, (self.folder.parent / "terminal-0.log").read_text()
            for device in devices:
                device.send_signal(signal.SIGINT)
            assert [device.wait(60) for device in devices] == [130] * len(devices)


@pytest.mark.fleet
@pytest.mark.timeout(1800)
def test_the_deployment_guide(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    terminal = Terminal(folder)
    for block in section(GUIDE, SETUP):
        lines = block.text.splitlines()
        together = [line for line in lines if TERMINAL.match(line)]
        for line in lines:
            if line in together:
                continue
            # The port is the only word that is not the guide's: it may be taken on this machine.
            free = f" --port {free_port()}" if line.startswith("fedpbc fleet init") else ""
            terminal.run(line + free)
        if together:
            terminal.run_together(together)
    # As the text says: models, a page, a comparison, and the parts of the second fleet.
    assert {path.name for path in (folder / "trial" / "server" / "models").iterdir()} == {
        f"{view}.safetensors" for view in ("server", "averaged", "reported", "corrected")
    }
    assert (folder / "trial" / "server" / "report.html").is_file()
    assert (folder / "runs" / "compare" / "comparison.json").is_file()
    for name in ("README.md", "server/mine.py", "device-3/node.key", "device-10", "authority"):
        assert (folder / "plant" / name).exists(), name
    # The commands of the other sections are for the folder of the whole fleet.
    terminal.folder = folder / "trial"
    for line in in_words([*section(GUIDE, STATUS), *section(GUIDE, CHECK)]):
        output = terminal.run(line)
        assert "20 of 20 rounds" in output or "no difference above 1e-06" in output, output
    assert "rounds done 20 of 20" in re.sub(
        r"\s*<[^>]*>\s*", " ", (folder / "trial" / "server" / "report.html").read_text()
    )


@pytest.mark.fleet
@pytest.mark.timeout(1800)
def test_the_quick_start_of_a_flower_app(tmp_path):
    """As docs/flower.md has it, in a folder with the examples; what it installs is here already."""
    pytest.importorskip("ray")
    shutil.copytree(
        ROOT / "examples" / "flower-quickstart", tmp_path / "examples/flower-quickstart"
    )
    page = ROOT / "docs" / "flower.md"
    lines = in_words(section(page, "# In your own Flower app"))
    lines = lines[: lines.index("fedpbc links --trace links.csv")]
    assert [line.split()[0] for line in lines] == ["pip", "pip", "export", "flwr", "flwr"]
    # Of what it sets, only what the page says to set; the rest keeps this run apart from others.
    own = environment(tmp_path)
    del own["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
    # With what was exported, as `flwr run` would, but with more patience.
    lines.insert(3, shlex.join([sys.executable, "-c", START_LOCAL_SUPERLINK]))
    try:
        ended = subprocess.run(
            ["bash", "-e", "-c", "\n".join(lines[2:])],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
    finally:
        stop_local_superlink(tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("[ROUND 10/10]") + ended.stderr.count("[ROUND 10/10]") == 2
