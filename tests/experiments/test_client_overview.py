from __future__ import annotations

import json
import mmap

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedpbc import Quadratic, simulate
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.client_overview import (
    ClientOverview,
    load_client_overview,
    save_client_overview,
)
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.peak_memory import peak_memory, reset_peak_memory
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.start import start_run
from fedpbc.links import from_table
from fedpbc.links.probabilities import from_data
from tests.commandline import DIGITS, content, fedpbc, metrics, ran, write_check
from tests.small_runs import network

SMALL = {"data": "digits", "clients": 8, "rounds": 12}


def test_a_run_writes_down_its_fleet(tmp_path):
    config = Config.from_dict({**SMALL, "seed": 3})
    start_run(config, tmp_path / "run")
    fleet = load_client_overview(tmp_path / "run" / "fleet.safetensors")
    simulation = build_experiment(config).simulation
    task = simulation.task
    assert fleet.p.tolist() == from_data(3, task.class_shares).tolist()
    table = [simulation.uplink.up(t) for t in range(12)]
    assert fleet.up.tolist() == np.array(table).tolist()
    assert fleet.shares.tolist() == np.mean(table, axis=0).tolist()
    active = [int(row.sum()) for row in fleet.up]
    lines = metrics(tmp_path / "run")
    assert [line["active"] for line in lines] == [active[9], active[11]]
    # By hand: how often each label is among each client's samples.
    counts = [np.bincount(task.data.labels[part], minlength=10).tolist() for part in task.parts]  # type: ignore[attr-defined]
    assert fleet.class_counts.tolist() == counts
    assert fleet.samples.tolist() == [len(part) for part in task.parts]  # type: ignore[attr-defined]
    assert fleet.task == ""


@pytest.mark.parametrize("links", ["always", {"name": "table"}])
def test_links_that_do_not_go_by_p_have_none(tmp_path, links):
    if isinstance(links, dict):
        np.save(tmp_path / "up.npy", np.ones((12, 8)))
        links["file"] = str(tmp_path / "up.npy")
    start_run(Config.from_dict({**SMALL, "links": links}), tmp_path / "run")
    fleet = load_client_overview(tmp_path / "run" / "fleet.safetensors")
    assert fleet.p is None
    assert fleet.shares.tolist() == [1.0] * 8


def test_quadratics_and_tasks_from_python_have_what_they_have(tmp_path):
    tasks = [Quadratic([[0.0], [1.0]]), Quadratic([[0.0], [2.0]])]
    for k, task in enumerate(tasks):
        simulate(task, "fedavg", {"name": "bernoulli", "p": 0.5}, rounds=4, out=tmp_path / str(k))
    one, two = (load_client_overview(tmp_path / name / "fleet.safetensors") for name in "01")
    assert one.p.tolist() == [0.5, 0.5]
    assert one.class_counts is None
    assert one.samples is None
    # The same options, but not the same task.
    assert one.task != two.task


def test_large_fleets_are_cut(tmp_path):
    simulation = build_experiment(Config.from_dict(SMALL)).simulation
    simulation.uplink = from_table(np.ones((500, 300), dtype=bool))
    save_client_overview(tmp_path / "fleet.safetensors", simulation)
    fleet = load_client_overview(tmp_path / "fleet.safetensors")
    assert fleet.up.shape == (400, 200)
    assert fleet.shares.shape == (300,)


def test_a_folder_without_it_goes_on_to_the_same_bits_and_has_it_then(tmp_path):
    class Stop(Exception):
        pass

    def stop(done, found):
        if done == 6:
            raise Stop

    from fedpbc.experiments.execution import Watcher

    config = Config.from_dict({**SMALL, "checkpoint_every": 2})
    with pytest.raises(Stop):
        start_run(config, tmp_path / "run", watcher=Watcher(on_round=stop))
    before = (tmp_path / "run" / "fleet.safetensors").read_bytes()
    (tmp_path / "run" / "fleet.safetensors").unlink()
    resumed = resume_run(tmp_path / "run")
    whole = start_run(config, tmp_path / "whole")
    assert resumed["views"] == whole["views"]
    assert resumed["fingerprint"] == whole["fingerprint"]
    assert (tmp_path / "run" / "fleet.safetensors").read_bytes() == before


def test_overwriting_removes_what_is_shown_of_the_old_run(tmp_path):
    run = tmp_path / "run"
    ran("run", write_check(tmp_path), "--out", run)
    ran("report", run)
    RunDirectory(run).save_failure("an old one")
    old = (run / "fleet.safetensors").read_bytes()
    ran("run", *DIGITS, "--rounds", 2, "--out", run, "--overwrite")
    assert not (run / "report.html").exists()
    assert not (run / "failure.txt").exists()
    assert (run / "fleet.safetensors").read_bytes() != old


def test_a_missing_or_damaged_file_is_an_unknown_fleet(tmp_path):
    (tmp_path / "damaged").write_bytes(b"\x00" * 40)
    for name in ("damaged", "missing"):
        assert vars(load_client_overview(tmp_path / name)) == vars(ClientOverview())


def test_a_run_that_diverged_says_so_in_its_folder_until_it_is_resumed(tmp_path):
    run = tmp_path / "run"
    ended = fedpbc("run", *DIGITS, "--rounds", 20, "--learning-rate", "1e30", "--out", run)
    assert ended.code == 2
    line = RunDirectory(run).failure()
    assert ended.err == f"fedpbc: {line}\n"
    assert "diverged" in line
    before = content(run)
    assert fedpbc("resume", run).code == 2
    assert content(run)["failure.txt"] == before["failure.txt"]


def test_the_first_rounds_and_clients_of_a_timetable():
    table = np.random.default_rng(0).random((30, 21)) < 0.5
    timetable = from_table(table)
    assert timetable.block(30, 21).tolist() == table.tolist()
    assert timetable.block(7, 9).tolist() == table[:7, :9].tolist()
    assert timetable.block(99, 99).tolist() == table.tolist()
    assert timetable.shares(9).tolist() == table.mean(axis=0)[:9].tolist()
    assert timetable.shares().tolist() == table.mean(axis=0).tolist()


def test_counts_are_whole_and_add_up():
    task = network(clients=7)
    assert task.class_counts.sum() == task.samples.sum() == 280
    assert (task.class_counts.sum(axis=1) == task.samples).all()


def test_peak_memory_is_this_runs_own():
    if peak_memory() is None:
        pytest.skip("this system does not tell")
    reset_peak_memory()
    low = peak_memory()["process"]
    # Straight from the system: what an earlier test gave back could serve again, and add nothing.
    block = mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    high = peak_memory()["process"]
    assert high - low > 2**25
    block.close()
    # It stays, though the system counts pages in batches and may be a few off.
    assert abs(peak_memory()["process"] - high) < 2**22
    assert peak_memory()["workers"] == 0


def test_the_summary_has_the_memory_and_that_of_workers(tmp_path):
    if peak_memory() is None:
        pytest.skip("this system does not tell")
    start_run(Config.from_dict({**SMALL, "engine": "pool", "workers": 1}), tmp_path / "run")
    memory = json.loads((tmp_path / "run" / "summary.json").read_text())["memory"]
    # Each has at least Python and PyTorch in it.
    assert min(memory.values()) > 50 * 2**20
    assert memory.keys() == {"process", "workers"}


def test_where_nobody_tells_there_is_no_memory(monkeypatch, tmp_path):
    monkeypatch.setattr("fedpbc.experiments.run_summary.peak_memory", lambda workers: None)
    assert "memory" not in start_run(Config.from_dict(SMALL), tmp_path / "run")


def test_without_linux_it_is_the_processs_peak(monkeypatch, tmp_path):
    monkeypatch.setattr("fedpbc.experiments.peak_memory.PROC", tmp_path)
    reset_peak_memory()
    assert peak_memory()["process"] > 10 * 2**20


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("up", np.zeros(3, dtype=bool)),
        ("up", np.zeros((0, 3), dtype=bool)),
        ("up", np.zeros((2, 3))),
        ("p", np.array([0.5, np.nan])),
        ("p", np.array([1.5])),
        ("shares", np.array([[0.5]])),
        ("class_counts", np.array([[-1]])),
        ("samples", np.array([0.5])),
    ],
)
def test_arrays_of_another_kind_count_as_none(tmp_path, name, array):
    save_file({name: torch.from_numpy(array)}, tmp_path / "fleet.safetensors")
    assert getattr(load_client_overview(tmp_path / "fleet.safetensors"), name) is None


def test_a_link_is_not_followed(tmp_path):
    save_file({"p": torch.ones(2, dtype=torch.float64)}, tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "fleet.safetensors").symlink_to(tmp_path / "elsewhere")
    assert load_client_overview(tmp_path / "elsewhere").p is not None
    assert load_client_overview(tmp_path / "run" / "fleet.safetensors").p is None
