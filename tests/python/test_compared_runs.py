"""A comparison goes to all cores by itself once it pays, and only then."""

from __future__ import annotations

import time

import pytest

from fedpbc import Quadratic, compare, simulate
from fedpbc.python import compared_runs


def make_task(seed=0):
    return Quadratic([[0.0], [9.0]], seed=seed)


@pytest.fixture
def elsewhere(monkeypatch):
    """Each run takes as long as the test says; what leaves the process, and to how many."""
    left: list[tuple[list[int], int]] = []
    now, run_one = [0.0], compared_runs.run_one
    monkeypatch.setattr(compared_runs, "usable_cores", lambda: 4)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(make_task, run, on_progress):
        now[0] += seconds[0]
        return run_one(make_task, run, on_progress)

    def run_elsewhere(make_task, runs, numbers, jobs, on_progress):
        left.append((list(numbers), jobs))
        return {k: run_one(make_task, runs[k], lambda done: None) for k in numbers}

    seconds = [1.0]
    monkeypatch.setattr(compared_runs, "run_one", slow)
    monkeypatch.setattr(compared_runs, "_run_elsewhere", run_elsewhere)

    def compared(each: float, **options):
        left.clear()
        seconds[0] = each
        found = compare(make_task, ["fedavg", "mifa"], "0-3", links="always", rounds=2, **options)
        assert [run.label for run in found.runs] == ["fedavg"] * 4 + ["mifa"] * 4
        assert [run.seed for run in found.runs] == [0, 1, 2, 3] * 2
        return list(left)

    return compared


def test_once_the_first_run_shows_that_it_pays(elsewhere):
    # Seven runs are left: more than half a minute of work, or less.
    assert elsewhere(compared_runs.WORTH_SECONDS / 7 + 0.1) == [([1, 2, 3, 4, 5, 6, 7], 4)]
    assert elsewhere(compared_runs.WORTH_SECONDS / 7 - 0.1) == []


def test_not_where_it_was_told_otherwise(elsewhere):
    assert elsewhere(100.0, jobs=1) == []
    assert elsewhere(100.0, on_round=lambda done, metrics: None) == []
    assert elsewhere(100.0, jobs=3) == [(list(range(8)), 3)]


@pytest.mark.parametrize(("engine", "leaves"), [("serial", True), ("pool", False)])
def test_engines_with_processes_of_their_own_stay(elsewhere, engine, leaves, monkeypatch):
    if engine == "pool":
        # Nothing is started: what counts is what was asked for.
        monkeypatch.setattr(
            compared_runs, "simulate", lambda *a, engine, **more: simulate(*a, **more)
        )
    assert bool(elsewhere(100.0, engine=engine)) == leaves


def test_not_on_a_machine_with_one_core(elsewhere, monkeypatch):
    monkeypatch.setattr(compared_runs, "usable_cores", lambda: 1)
    assert elsewhere(100.0) == []
