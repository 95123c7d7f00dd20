from __future__ import annotations

import pytest

from fedpbc.experiments.tuning.result import Score, TrialResult, TunedEntry, score_of


def line(round, **views):
    return {
        "round": round,
        "views": {name: {"test_accuracy": v, "test_loss": 1 - v} for name, v in views.items()},
    }


def test_the_mean_of_the_last_fifth_in_the_best_deployable_view():
    lines = [line(t, server=t / 100, averaged=0.3, mean=1.0) for t in range(2, 21, 2)]
    # Of 20 rounds the last four: rounds 18 and 20.
    assert score_of([lines], 20) == Score(0.3, "averaged", 20)
    best = [line(t, server=t / 100, averaged=0.1) for t in range(2, 21, 2)]
    assert score_of([best], 20) == Score(pytest.approx(0.19), "server", 20)
    # Later rounds, of a run that has gone on, do not count.
    assert score_of([best], 10) == Score(pytest.approx(0.1), "server", 10)


def test_over_seeds():
    score = score_of([[line(5, server=0.4)], [line(5, server=0.6)]], 5)
    assert (score.value, score.deviation) == (0.5, pytest.approx(0.1 * 2**0.5))


def test_a_task_without_classes_is_scored_by_its_loss():
    lines = [{"round": 1, "views": {"server": {"test_loss": 3.0}}}]
    assert score_of([lines], 1).value == -3.0


def trial(rate, value, rounds):
    score = None if value is None else Score(value, "server", rounds)
    return TrialResult({"train.learning_rate": rate}, score, rounds)


def test_the_best_is_one_that_ran_longest():
    tuned = TunedEntry("fedavg", [trial(0.1, 0.5, 90), trial(0.2, 0.9, 10), trial(0.4, 0.6, 90)])
    assert tuned.best is tuned.trials[2]
    equal = TunedEntry("fedavg", [trial(0.1, 0.5, 90), trial(0.2, 0.5, 90)])
    assert equal.best is equal.trials[0]
    assert TunedEntry("fedavg", [trial(0.1, None, 90)]).best is None


def test_a_step_size_at_the_edge_of_what_was_tried():
    assert TunedEntry("a", [trial(0.1, 0.5, 9), trial(0.2, 0.6, 9)]).at_edge() == "largest"
    assert TunedEntry("a", [trial(0.1, 0.6, 9), trial(0.2, 0.5, 9)]).at_edge() == "smallest"
    assert TunedEntry("a", [trial(0.1, 0.5, 9)]).at_edge() is None
    # Beyond 0.2 there is nothing: it diverges.
    wild = [trial(0.1, 0.5, 9), trial(0.2, 0.6, 9), trial(0.4, None, 9)]
    assert TunedEntry("a", wild).at_edge() is None


def test_every_step_size_may_diverge_under_another_setting():
    def with_scale(rate, scale, value):
        settings = {"train.learning_rate": rate, "train.global_learning_rate": scale}
        return TrialResult(settings, None if value is None else Score(value, "server", 9), 9)

    trials = [with_scale(0.1, 1.0, 0.5), with_scale(0.2, 1.0, 0.6)]
    trials += [with_scale(0.2, 1.5, None), with_scale(0.1, 1.5, None)]
    assert TunedEntry("a", trials).at_edge() == "largest"


def test_scores_that_tell_nothing_apart():
    equal = [trial(0.1, 0.5, 90), trial(0.2, 0.5, 90), trial(0.4, None, 90)]
    assert TunedEntry("a", equal).all_equal
    assert not TunedEntry("a", [*equal, trial(0.3, 0.6, 90)]).all_equal
    assert not TunedEntry("a", [trial(0.1, 0.5, 90)]).all_equal
