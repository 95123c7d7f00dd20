"""What is measured before the schedule is chosen."""

from __future__ import annotations

from fedpbc.experiments.advice import speed
from fedpbc.experiments.advice.link_facts import examine_links
from fedpbc.experiments.advice.request import AdviceRequest
from fedpbc.experiments.advice.schedule import Speed


def test_clients_that_do_more_than_local_steps_are_measured(monkeypatch):
    measured = []

    def stand_in(request, algorithm=None, links=None, **settings):
        name = "fedavg" if algorithm is None else algorithm["name"]
        measured.append(name)
        seconds = {"scaffold": 0.04, "area": 0.001}.get(name, 0.01 if links is None else 0.02)
        return Speed(seconds, 0.5)

    values = {"data": "digits", "clients": 4, "rounds": 8, "links": {"name": "always"}}
    request = AdviceRequest(values)
    costs = examine_links(request).costs
    monkeypatch.setattr(speed, "_measured", stand_in)
    speeds, ceiling = speed.measure_speeds(request, costs)
    assert ceiling.round == 0.02
    assert {"scaffold", "amplified_scaffold", "focus", "area"} <= {*measured}
    assert "fedau" not in measured
    assert speeds["fedau"].round == speeds["fedavg"].round == 1.2 * 0.01
    assert speeds["scaffold"].round == 1.2 * 0.04
    # A moment's luck makes nothing quicker than FedAvg.
    assert speeds["area"].round == speeds["fedavg"].round
