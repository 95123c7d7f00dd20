from __future__ import annotations

import json

import pytest

from fedpbc.experiments.advice import advise as steps
from fedpbc.experiments.advice.directory import AdviceDirectory, with_schedule
from fedpbc.experiments.advice.link_facts import examine_links
from fedpbc.experiments.advice.request import AdviceRequest, prepare_values
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.experiments.tuning.result import Score, TrialResult, TunedEntry, TuningResult

VALUES = {"data": "digits", "clients": 8, "links": {"name": "bernoulli", "p": 0.25}}


@pytest.fixture(scope="module")
def asked():
    request = AdviceRequest(*prepare_values(VALUES))
    return request, examine_links(request)


def test_with_every_link_up_all_clients_train(asked):
    """Of 300 rounds, whatever the schedule makes of them; at p = ¼ about four times as much."""
    _, links = asked
    assert links.rounds == 300
    assert links.work_of_ceiling == pytest.approx(
        8 * 300 * links.local_steps / links.costs["fedavg"].local_steps
    )
    assert 3 < links.work_of_ceiling < 5


@pytest.mark.parametrize("rounds", [300, 75])
def test_a_ceiling_is_priced_by_the_rounds_that_are_run(asked, tmp_path, monkeypatch, rounds):
    """In the search, FedAvg's round took 0.2 s: 75 of them 1.3 × 15 s and the start."""
    request, links = asked
    schedule = Schedule(rounds, ("fedavg", "mifa"), 2, 1, 3, True, 9.0, False)
    directory = AdviceDirectory(tmp_path)
    plan = plan_tuning(
        with_schedule(request, schedule).values,
        TuningRequest(algorithms=["fedavg", "mifa"], candidates=1),
    )
    trial = TrialResult({}, Score(0.5, "server", rounds), rounds)
    result = TuningResult(plan, [TunedEntry("fedavg", [trial]), TunedEntry("mifa", [trial])], True)
    for name in ("fedavg", "mifa"):
        folder = directory.tuning.path / name / "candidate-0/seed-0"
        folder.mkdir(parents=True)
        line = {"round": 10, "seconds": 2.0}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    heard = {}

    def affordable(names, seconds, **options):
        heard.update(seconds=seconds, **options)
        return list(names), True

    monkeypatch.setattr(steps, "affordable_finalists", affordable)
    steps._affordable(["fedavg", "mifa"], schedule, links, directory, result, 2, 100.0)
    of_run = 1.3 * rounds * 0.2 + 0.6
    assert heard["seconds"]["fedavg"] == pytest.approx(of_run)
    assert heard["ceiling"] == pytest.approx(of_run * links.work_of_ceiling)
    assert 3 * of_run < heard["ceiling"] < 5 * of_run
