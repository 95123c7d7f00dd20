"""Runs side by side: pauses, tasks of Python, what is not run again."""

from __future__ import annotations

import numpy as np
import pytest

from fedpbc import Quadratic
from fedpbc.errors import InputError
from fedpbc.study.build import check, task_values
from fedpbc.study.pool import Progress, run_all
from fedpbc.study.study import Study

SMALL = {"data": "digits", "clients": 5, "rounds": 6, "evaluate_every": 2}


def make_task(seed: int) -> Quadratic:
    return Quadratic([[0.0], [9.0 + seed]], seed=seed)


def of_python(**given: object) -> Study:
    base = {"task": "python", "links": {"name": "bernoulli", "p": 0.5}, "rounds": 8}
    return Study.of({**base, "algorithms": ["fedavg", "mifa"], "seeds": "0-1", **given})


def test_runs_pause_and_go_on(tmp_path):
    study = Study.of({**SMALL, "algorithms": ["fedpbc", "fedavg"], "seeds": [0]})
    runs = [(run, tmp_path / run.label) for run in study.runs()]
    first = run_all(runs, until=2)
    assert [(r.finished, r.metrics[-1]["round"]) for r in first] == [(False, 2)] * 2
    seen: list[Progress] = []
    second = run_all(runs, 1, seen.append, until=2)
    assert {(p.number, p.done) for p in seen} == {(0, 2), (1, 2)}
    assert [r.metrics for r in second] == [r.metrics for r in first]
    assert all(record.finished for record in run_all(runs))


@pytest.mark.slow
def test_tasks_of_python_are_the_same_in_other_processes():
    study = of_python()
    runs = [(run, None) for run in study.runs(lambda seed: task_values(make_task(seed)))]
    assert len({run.id for run, _ in runs}) == 4
    here, there = (run_all(runs, jobs, make_task=make_task) for jobs in (1, 2))
    views = [[line["views"] for line in record.metrics] for record in here]
    assert views == [[line["views"] for line in record.metrics] for record in there]
    assert [(r.label, r.seed) for r in there] == [(run.label, run.seed) for run, _ in runs]


def test_links_that_are_a_table_reach_the_runs():
    up = np.ones((8, 2), dtype=bool)
    study = of_python(links=up, algorithms=["fedavg"], seeds=[0])
    runs = study.runs(lambda seed: task_values(make_task(seed)))
    [record] = run_all([(run, None) for run in runs], make_task=make_task)
    assert record.metrics[-1]["active"] == 2
    assert record.values["links"]["name"] == "timetable"


def test_what_a_users_function_fails_with_is_an_error_at_once():
    def broken(seed: int) -> Quadratic:
        raise RuntimeError("no data")

    runs = of_python().runs(lambda seed: task_values(make_task(seed)))
    with pytest.raises(InputError, match=r"make_task\(0\) failed: RuntimeError: no data"):
        run_all([(run, None) for run in runs], make_task=broken)


def test_what_only_shows_when_it_is_built_shows_before_anything_is_written():
    study = Study.of({**SMALL, "algorithms": ["fedpbc"], "links": {"p": [0.5] * 3}})
    with pytest.raises(InputError, match=r"links\.p has 3 numbers"):
        check(study.runs())
