"""Jobs with many link failures: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest

from fedpbc.algorithms import ALGORITHMS

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedpbc[flower]'")

from tests.deployment.real_fleet import (
    after_round,
    audit,
    check_exact,
    logged_answers,
    make_fleet,
    to_the_end,
    until,
)

pytestmark = pytest.mark.fleet


@pytest.mark.parametrize(
    "algorithm",
    ["fedpbc", "scaffold", {"name": "mifa", "memory": "client"}, "focus"],
    ids=["fedpbc", "scaffold", "mifa", "focus"],
)
def test_scheduled_outages(tmp_path, algorithm):
    """Ten rounds, with links that are cut in certain rounds."""
    down = {1: {2, 3, 6}, 2: {4, 6, 8}}
    with make_fleet(tmp_path, clients=3, rounds=10, seconds=25.0, algorithm=algorithm) as fleet:
        fleet.start()
        for round in range(10):
            until(fleet, lambda r=round: len(fleet.lines()) >= r, 120)
            for client, proxy in enumerate(fleet.proxies):
                if round in down.get(client, ()):
                    proxy.cut()
                else:
                    proxy.restore()
        table = to_the_end(fleet)
    for client, rounds in down.items():
        assert not table[sorted(rounds), client].any()
        assert table[:, client].any()
    assert table[:, 0].sum() >= 8


PLUGIN = """
from fedpbc import register_algorithm
from tests.deployment.rules import Drift

register_algorithm(Drift)
"""


def test_an_algorithm_of_a_plugin(tmp_path, monkeypatch):
    """Clients that keep their own models and more, train on while offline, and are cut off."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    # For the processes, which import the plugin.
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}")
    options = {"algorithm": "drift", "plugins": [str(tmp_path / "plugin.py")]}
    try:
        with make_fleet(tmp_path, clients=2, rounds=7, seconds=20.0, **options) as fleet:
            fleet.start()
            after_round(fleet, 2)
            fleet.proxies[1].cut()
            after_round(fleet, 4)
            fleet.proxies[1].restore()
            table = to_the_end(fleet)
    finally:
        ALGORITHMS.pop("drift", None)
    assert table[:2].all()
    assert not table[3, 1]
    assert table[-1].all()


def test_a_hundred_rounds_of_ten_nodes_with_random_cuts(tmp_path):
    clients, rounds = 10, 100
    draw = random.Random(1)
    cuts = [0] * clients
    with make_fleet(tmp_path, clients=clients, rounds=rounds, seconds=16.0) as fleet:
        ended = threading.Event()

        def cut(client: int, seconds: random.Random) -> None:
            while not ended.wait(seconds.expovariate(1 / 40)):
                fleet.proxies[client].cut()
                cuts[client] += 1
                ended.wait(seconds.expovariate(1 / 15))
                fleet.proxies[client].restore()

        fleet.start()
        after_round(fleet, 1)
        threads = [
            threading.Thread(target=cut, args=(client, random.Random(draw.random())))
            for client in range(clients)
        ]
        for thread in threads:
            thread.start()
        try:
            until(fleet, fleet.step, 3600)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        audit(fleet)
        table = check_exact(fleet)
        answers = sum(len(logged_answers(fleet, client)) for client in range(clients))
    figures = {
        "rounds": rounds,
        "cuts": sum(cuts),
        "answers made": answers,
        "answers counted": int(table.sum()),
        "rounds with missing clients": int((~table.all(axis=1)).sum()),
    }
    print(json.dumps(figures))
    assert sum(cuts) > 100
    # Enough answers got through, and enough did not, for the audit to mean something.
    assert 100 < table.sum() < 0.95 * table.size
    assert (table.sum(axis=0) > 5).all()
