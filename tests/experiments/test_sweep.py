from __future__ import annotations

import os
import signal
import time

import pytest

from fedpbc.errors import FedpbcError
from fedpbc.experiments import sweep
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import DivergedReason, GridCell, count_run_alone, run_grid
from tests.commandline import COMMAND, DIGITS, assert_same_run, ran
from tests.processes import PATIENCE, child, group_is_alive, wait_until

pytestmark = pytest.mark.slow

GIVEN = {"data": "digits", "clients": 8, "rounds": 6, "links": {"name": "bernoulli", "p": 0.5}}


def cells(place, *more):
    return [
        GridCell(place / str(k), {**GIVEN, "seed": k, **options}) for k, options in enumerate(more)
    ]


def test_all_cells_run_and_their_progress_is_told(tmp_path):
    told = []
    grid = cells(tmp_path, {}, {"algorithm": "fedavg"})
    assert run_grid(grid, 1, told.append) == [None, None]
    ended = [p for p in told if p.done == 6]
    assert [p.cell for p in ended] == [0, 1]
    for cell, progress, view in zip(grid, ended, ("mean", "server"), strict=True):
        assert RunDirectory(cell.path).finished
        last = RunDirectory(cell.path).metrics()[-1]["views"]
        assert progress.accuracy == last[view]["test_accuracy"]


def test_a_single_run_has_the_whole_machine_unless_it_is_to_have_one_core(tmp_path, monkeypatch):
    grid = cells(tmp_path, {}, {})

    def refuse(*_, **__):
        raise FedpbcError("in the process that all cores belong to")

    monkeypatch.setattr(sweep, "start_run", refuse)
    told = []
    assert run_grid(grid[:1], 2, told.append) == ["in the process that all cores belong to"]
    assert run_grid(grid[1:], 2, told.append, one_core=True) == [None]
    assert RunDirectory(grid[1].path).finished


def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path):
    wild = {"train": {"learning_rate": 1e30}, "links": "always"}
    [first, second, third] = run_grid(
        cells(tmp_path, wild, {}, {"algorithm": "nobody"}), 1, lambda _: None
    )
    assert "diverged in round 0" in first
    assert isinstance(first, DivergedReason)
    assert not isinstance(third, DivergedReason)
    assert second is None
    assert "algorithm is 'nobody'" in third


def test_what_is_finished_is_not_run_again(tmp_path):
    grid = cells(tmp_path, {}, {})
    run_grid(grid[:1], 1, lambda _: None)
    summary = grid[0].path / "summary.json"
    before = summary.stat().st_ino, summary.stat().st_mtime_ns
    told = []
    assert run_grid(grid, 1, told.append) == [None, None]
    assert (summary.stat().st_ino, summary.stat().st_mtime_ns) == before
    assert all(p.done == 6 for p in told if p.cell == 0)


def test_the_first_may_have_the_machine_to_themselves_and_give_the_same(tmp_path):
    grid = cells(tmp_path / "a", {}, {"algorithm": "fedavg"})
    told = []
    assert run_grid(grid, 2, told.append, alone=1) == [None, None]
    assert {p.cell for p in told if p.done == 6} == {0, 1}
    # The first was done before the other began.
    order = [p.cell for p in told]
    assert order == sorted(order)
    one = cells(tmp_path / "b", {}, {"algorithm": "fedavg"})
    run_grid(one, 1, lambda _: None)
    for alone, serial in zip(grid, one, strict=True):
        assert_same_run(alone.path, serial.path)


def test_long_runs_go_alone_only_where_cores_would_stand_idle():
    short = [1] * 6
    assert count_run_alone([10, *short], 2, 1) == 1
    assert count_run_alone([10, 10, 10, *short * 3], 2, 3) == 0
    # Two of three side by side, and then one for which there are not enough short ones.
    assert count_run_alone([10, 10, 10, *short], 2, 3) == 1
    assert count_run_alone([10, *short], 1, 1) == 0
    # Where none can be shared among cores there is nothing to be done.
    assert count_run_alone([10, *short], 2, 0) == 0
    assert count_run_alone([], 2, 0) == 0


def test_whoever_listens_may_stop_it(tmp_path):
    class Stop(Exception):
        pass

    def stop(_):
        raise Stop

    grid = cells(tmp_path, {}, {})
    with pytest.raises(Stop):
        run_grid(grid, 1, stop)
    assert not RunDirectory(grid[0].path).finished
    assert run_grid(grid, 1, lambda _: None) == [None, None]


STOPPED = ("compare", *DIGITS, "--rounds", 60, "--set", "links.p=0.5", "--evaluate-every", 3)
STOPPED += ("--algorithms", "mifa", "--seeds", "0,1", "--set", "checkpoint_every=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid") / "whole"
    ran(*STOPPED, "--jobs", 1, "--out", folder)
    return folder


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_comparison_stopped_side_by_side_goes_on_to_the_same_bits(tmp_path, whole, how):
    folder = tmp_path / "stopped"
    command = [COMMAND, *map(str, [*STOPPED, "--jobs", 2, "--out", folder])]
    metrics = folder / "mifa" / "seed-0" / "metrics.jsonl"
    with child(command) as running:
        while not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= 3):
            assert running.poll() is None
            time.sleep(0.01)
        # Ctrl-C goes to the whole group; a kill to one process, whose workers must notice.
        if how == signal.SIGINT:
            os.killpg(running.pid, how)
        else:
            running.send_signal(how)
        out, err = running.communicate(timeout=PATIENCE)
        # Workers that are still there hold their runs.
        wait_until(lambda: not group_is_alive(running.pid))
    if how == signal.SIGINT:
        assert running.returncode == 130
        assert out == ""
        assert err.endswith(f"fedpbc: interrupted; 'fedpbc resume {folder}' continues it\n")
    assert not (folder / "comparison.json").exists()
    ran("resume", folder, "--jobs", 1)
    for cell in ("mifa/seed-0", "mifa/seed-1"):
        assert_same_run(folder / cell, whole / cell)
