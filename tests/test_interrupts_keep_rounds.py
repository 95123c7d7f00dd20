"""An interrupt loses no completed round, wherever it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpbc import ALGORITHMS, Algorithm, Config, Round, start_run
from fedpbc.experiments.checkpoints import rounds_of
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.simulation.server_state import ServerState
from tests.commandline import assert_same_run

CONFIG = {
    "data": "digits",
    "clients": 8,
    "rounds": 9,
    "evaluate_every": 2,
    "links": {"name": "bernoulli", "p": 0.5},
}


@pytest.fixture(scope="module", params=["fedpbc", "fedavg", "scaffold"])
def whole(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / request.param
    start_run(Config.from_dict({**CONFIG, "algorithm": request.param}), folder)
    return folder


@pytest.mark.parametrize("moment", ["between rounds", "in a round", "in an evaluation"])
def test_an_interrupt_keeps_the_completed_rounds(whole, tmp_path, monkeypatch, moment):
    config = Config.from_dict({**CONFIG, "algorithm": whole.name})
    run = tmp_path / "run"
    completed = 5

    def after(done: int, metrics: object) -> None:
        if moment == "between rounds" and done == completed:
            raise KeyboardInterrupt

    kind = ALGORITHMS[whole.name]
    aggregate, view_models = kind.aggregate, ServerState.view_models

    def interrupted_aggregate(self: Algorithm, round: Round, updates: Any) -> None:
        aggregate(self, round, updates)
        if round.number == completed:
            raise KeyboardInterrupt

    interrupts = 1

    def interrupted_view_models(self: ServerState) -> Any:
        nonlocal interrupts
        if self.round >= completed and interrupts:
            interrupts -= 1
            raise KeyboardInterrupt
        return view_models(self)

    with monkeypatch.context() as patch:
        if moment == "in a round":
            patch.setattr(kind, "aggregate", interrupted_aggregate)
        if moment == "in an evaluation":
            patch.setattr(ServerState, "view_models", interrupted_view_models)
        with pytest.raises(KeyboardInterrupt):
            start_run(config, run, watcher=Watcher(on_round=after))
    newest = RunDirectory(run).checkpoints.paths()[0]
    # An evaluation that was interrupted is done again; every second round has one.
    assert rounds_of(newest) == (6 if moment == "in an evaluation" else completed)
    resume_run(run)
    assert_same_run(whole, run)


def test_an_interrupt_while_a_run_replaces_another_leaves_the_earlier(whole, tmp_path):
    def stop(done: int, total: int, engine: str) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    config = Config.from_dict({**CONFIG, "algorithm": whole.name})
    start_run(config, run)
    with pytest.raises(KeyboardInterrupt):
        start_run(config, run, overwrite=True, watcher=Watcher(on_start=stop))
    assert_same_run(whole, run)
    assert not Path(run / ".next").exists()
