"""When runs are evaluated, against a literal search through all rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import InputError, Quadratic, simulate
from fedpbc.simulation.evaluation_schedule import EvaluationSchedule, window_of
from tests.commandline import fedpbc, ran, refused

intervals = st.integers(1, 60)


@given(st.integers(1, 700), intervals, st.none() | intervals)
def test_every_question_has_the_answer_of_the_plain_rule(rounds, every, at_end):
    before = rounds - window_of(rounds)
    expected = [
        t
        for t in range(1, rounds + 1)
        if t % (every if t <= before else at_end or every) == 0 or t == rounds
    ]
    schedule = EvaluationSchedule(rounds, every, at_end)
    assert schedule.due(rounds) == expected
    assert schedule.due(rounds // 2) == [t for t in expected if t <= rounds // 2]
    assert [schedule.number(n) for n in range(1, len(expected) + 1)] == expected
    assert [t for t in range(1, rounds + 1) if schedule.is_due(t)] == expected
    for done in range(0, rounds, 7):
        assert schedule.next_after(done) == next(t for t in expected if t > done)


def test_of_many_rounds_most_evaluations_are_those_that_are_averaged():
    due = EvaluationSchedule(10_000, 100, 10).due(10_000)
    assert due == [*range(100, 9_901, 100), *range(9_910, 10_001, 10)]


def rounds_of(result):
    return [metrics.round for metrics in result.metrics]


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg"])
def test_a_run_follows_it_and_the_models_are_the_same(algorithm):
    links, shared = {"name": "bernoulli", "p": 0.3}, {"rounds": 50}
    task = Quadratic([[0.0], [100.0], [7.0]])
    sparse = simulate(task, algorithm, links, evaluate_every=20, evaluate_every_at_end=4, **shared)
    assert rounds_of(sparse) == [20, 40, 44, 48, 50]
    often = simulate(task, algorithm, links, evaluate_every=1, **shared)
    values = {metrics.round: metrics.views for metrics in often.metrics}
    assert {metrics.round: metrics.views for metrics in sparse.metrics} == {
        n: values[n] for n in rounds_of(sparse)
    }


def test_it_is_a_setting_of_the_command_line_and_survives_a_resume(tmp_path):
    out = tmp_path / "run"
    given = ["--algorithm", "fedavg", "--data", "digits", "--clients", 5, "--rounds", 20]
    given += ["--evaluate-every", 8, "--set", "evaluate_every_at_end=2", "--links", "always"]
    ran("run", *given, "--out", out)
    assert "evaluate_every_at_end = 2" in (out / "config.toml").read_text()
    assert (out / "metrics.jsonl").read_text().count('"round":') == 4  # 8, 16, 18, 20
    whole = (out / "metrics.jsonl").read_text()
    # A report and a resume check that no evaluation is missing.
    assert "1 finished" in ran("report", out).out
    (out / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[1:]))
    line = refused(fedpbc("report", out))
    assert "metrics.jsonl" in line


def test_wrong_values_and_searches_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"^evaluate_every_at_end is 0, but should be"):
        simulate(Quadratic([[1.0]]), "fedavg", "always", rounds=3, evaluate_every_at_end=0)
    out = tmp_path / "tuned"
    search = ["tune", "--data", "digits", "--rounds", 9, "--set", "evaluate_every_at_end=1"]
    line = refused(fedpbc(*search, "--out", out))
    assert "evaluate_every_at_end is 1, but should be left out" in line
    assert not out.exists()
