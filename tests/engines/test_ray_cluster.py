"""Ray with several nodes: the same bits whatever comes and goes, and what is moved is counted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commandline import COMMAND, fedpbc
from tests.engines.ray_cluster import LocalCluster, local_cluster
from tests.processes import PATIENCE, child, wait_until

# Every node is several processes: on a busy machine they need more than the usual time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PLUGIN = """
import time
from pathlib import Path
from torch import nn
from fedpbc import register_model

HELD = Path(__file__).with_name("held")

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.004)
        while HELD.exists():
            time.sleep(0.01)
        return super().forward(x)

@register_model
def slow(shape, classes):
    return Slow(nn.Flatten(), nn.Linear(64, 800), nn.ReLU(), nn.Linear(800, classes))
"""
IMPATIENT = """
from fedpbc.engines import ray_nodes
ray_nodes.NODELESS_SECONDS = ray_nodes.HEADLESS_SECONDS = 1.0
"""
MODEL_BYTES = 4 * (64 * 800 + 800 + 800 * 10 + 10)
"""More than fits into Ray's messages."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One for all tests: it takes seconds to start."""
    pytest.importorskip("ray", reason="needs the extra: pip install 'fedpbc[ray]'")
    with local_cluster() as started:
        yield started


class Run:
    """A run of FedPBC with the command line, which takes a few seconds."""

    def __init__(self, folder: Path, *, rounds: int = 20, plugin: str = "") -> None:
        (folder / "slow.py").write_text(PLUGIN + plugin)
        task = ["--data", "digits", "--clients", "6", "--model", "slow"]
        length = ["--rounds", rounds, "--set", "evaluate_every=2", "--links", "bernoulli"]
        self.options = [*task, *length, "--plugin", folder / "slow.py", "--algorithm", "fedpbc"]
        self.folder = folder

    @contextmanager
    def on(self, cluster: LocalCluster) -> Iterator[subprocess.Popen[str]]:
        """As a process that uses a cluster."""
        engine = ["--engine", "ray", "--ray-address", cluster.address]
        command = [COMMAND, "run", *self.options, *engine, "--json", "--out", self.folder / "ray"]
        with child(command, env=os.environ | cluster.environment) as self.process:
            yield self.process

    def await_evaluations(self, count: int) -> None:
        """Wait until it has made so many."""
        file = self.folder / "ray" / "metrics.jsonl"

        def reached() -> bool:
            return file.exists() and len(file.read_text().splitlines()) >= count

        wait_until(lambda: reached() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No client trains meanwhile, so that the run cannot end, however quick it is."""
        held = self.folder / "held"
        held.touch()
        yield
        held.unlink()

    def check_bits(self) -> None:
        """The models are those of one client after another."""
        serial = fedpbc("run", *self.options, "--engine", "serial", "--out", self.folder / "serial")
        assert serial.code == 0, serial.err
        found, wanted = (self.folder / name / "final.safetensors" for name in ("ray", "serial"))
        assert found.read_bytes() == wanted.read_bytes()


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, float], list[str]]:
    """What a run that ended well says of its cluster, and its notes."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out)["cluster"], [line for line in err.splitlines() if " %: " not in line]


def test_a_node_is_lost_and_another_one_joins(cluster, tmp_path):
    cluster.grow(2)
    run = Run(tmp_path)
    with run.on(cluster) as process:
        run.await_evaluations(1)
        with run.held():
            cluster.lose()
            cluster.grow(len(cluster.nodes) + 1)
        moved, notes = ended(process)
    line = "nodes of the Ray cluster was lost: what ran there is run again"
    assert [note.endswith(line) for note in notes] == [True], notes
    assert (moved["nodes"], moved["nodes_joined"], moved["nodes_lost"]) == (4, 1, 1)
    assert moved["bytes_back"] >= moved["segments"] * MODEL_BYTES
    assert moved["bytes_data"] > 0
    run.check_bits()


@pytest.mark.long
def test_what_is_moved_is_counted(cluster, tmp_path):
    cluster.grow(1)
    run = Run(tmp_path)
    with run.on(cluster) as process:
        run.await_evaluations(1)
        with run.held():
            cluster.grow(len(cluster.nodes) + 1)
        moved, notes = ended(process)
    assert notes == []
    assert moved["nodes_joined"] == 1
    assert moved["nodes_lost"] == moved["segments_repeated"] == 0
    # The head has no CPU: all segments ran elsewhere, and each returned one model.
    assert moved["segments"] == moved["segments_elsewhere"]
    assert moved["bytes_back"] == moved["segments"] * MODEL_BYTES
    # Start models go to each node at most once; those trained on it are there.
    assert moved["bytes_out"] % MODEL_BYTES == 0
    assert 0 < moved["bytes_out"] < moved["bytes_back"]
    # To both nodes once, however many segments they ran: digits has 1,797 samples of 64 values.
    assert 2 * 1797 * 64 < moved["bytes_data"] < 2 * 1797 * 64 * 10
    assert moved["bytes_per_round"] * 20 >= moved["bytes_out"] + moved["bytes_back"]
    assert moved["bytes_per_round"] <= moved["bytes_largest_round"]
    run.check_bits()


@pytest.mark.long
def test_nodes_are_lost_one_after_another(cluster, tmp_path):
    cluster.grow(2)
    run = Run(tmp_path, rounds=100)
    with run.on(cluster) as process:
        for count in (1, 3, 5):
            run.await_evaluations(count)
            with run.held():
                cluster.lose()
                cluster.grow(2)
        moved, _ = ended(process)
    assert moved["nodes_lost"] == moved["nodes_joined"] == 3
    run.check_bits()


@pytest.mark.long
def test_no_node_is_left(cluster, tmp_path):
    cluster.grow(1)
    run = Run(tmp_path, plugin=IMPATIENT)
    with run.on(cluster) as process:
        run.await_evaluations(1)
        with run.held():
            while cluster.nodes:
                cluster.lose()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    line = err.splitlines()[-1]
    assert "cannot run: no node of the Ray cluster has had a CPU for 1 s (" in line
    assert "keeps everything up to round" in line
    # It goes on when there are nodes again.
    cluster.grow(1)
    resume = [COMMAND, "resume", tmp_path / "ray", "--json"]
    with child(resume, env=os.environ | cluster.environment) as process:
        ended(process)
    run.check_bits()


@pytest.mark.long
def test_the_head_is_lost(tmp_path):
    pytest.importorskip("ray", reason="needs the extra: pip install 'fedpbc[ray]'")
    run = Run(tmp_path, rounds=200, plugin=IMPATIENT)
    with local_cluster() as cluster:
        cluster.grow(1)
        with run.on(cluster) as process:
            run.await_evaluations(1)
            cluster.lose_head()
            out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    line = err.splitlines()[-1]
    assert "cannot run: the head of the Ray cluster, " in line
    assert "keeps everything up to round" in line
