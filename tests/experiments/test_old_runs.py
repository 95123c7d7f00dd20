"""Runs that an earlier version began, which counted no bytes."""

from __future__ import annotations

import json

import torch

from fedpbc import LocalTraining
from fedpbc.algorithms import FedPBC, ServerInit
from fedpbc.algorithms.client import ClientResult
from fedpbc.experiments.result_schema import check_summary
from fedpbc.simulation.costs import costs_of
from fedpbc.simulation.server_state import ServerState
from tests.commandline import content, ran
from tests.synthetic_runs import write_grid, write_run

COUNTS = ("bytes_up", "bytes_down")


def server() -> ServerState:
    return ServerState(FedPBC(ServerInit(torch.zeros(3), clients=2)), LocalTraining())


def complete_round(state: ServerState) -> None:
    upload = ClientResult({"model": torch.ones(3)})
    state.close_round(state.open_round([0]), [0], lambda client: upload)


def test_bytes_are_unknown_after_a_resume_without_them():
    first, resumed, newer = server(), server(), server()
    complete_round(first)
    assert (first.bytes_up, first.bytes_down) == (12, 12)
    saved = first.state()
    newer.restore(saved)
    resumed.restore({name: value for name, value in saved.items() if name not in COUNTS})
    complete_round(newer)
    complete_round(resumed)
    assert (newer.bytes_up, newer.bytes_down) == (24, 24)
    # A count of the later rounds alone would be taken for that of all.
    assert (resumed.bytes_up, resumed.bytes_down) == (None, None)
    assert resumed.uploads == newer.uploads == 2
    again = server()
    again.restore(resumed.state())
    complete_round(again)
    assert costs_of(again) == {**costs_of(newer), "uploads": 3, "local_steps": 30} | dict.fromkeys(
        COUNTS
    )


def test_summaries_with_unknown_bytes_are_read(tmp_path):
    run = write_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary["cost"] |= dict.fromkeys(COUNTS)
    check_summary(summary)


def test_old_folders_are_reported_and_resumed(tmp_path):
    write_grid(tmp_path / "runs", old=True)
    before = content(tmp_path / "runs")
    ran("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    assert content(tmp_path / "runs") == before
    assert "<td>–</td>" in (tmp_path / "page.html").read_text(encoding="utf-8")
