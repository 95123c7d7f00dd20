from __future__ import annotations

import json

import numpy as np

from fedpbc.deployment.ops import fleet_history
from fedpbc.deployment.ops.fleet_history import FleetHistory
from fedpbc.deployment.ops.status import FleetLog
from tests.deployment.round_logs import round_line, write_log


def history_of(folder, lines, **options):
    history = FleetHistory()
    FleetLog(write_log(folder, lines, **options), history).status()
    return history


def test_a_worked_example(tmp_path):
    lines = [round_line(0, [0, 1]), round_line(1, [0], refused=[1])]
    lines.append(round_line(2, [2]) | {"joined": [2], "left": [1], "changed": [0]})
    history = history_of(tmp_path, lines, clients=2)
    assert history.curves() == {
        "round": [0, 1, 2],
        "answered": [2, 1, 1],
        "refused": [0, 1, 0],
        # After round 1: 1 and 2; after round 2, without client 1: 2 and 1.
        "staleness_mean": [1.0, 1.5, 1.5],
        "staleness_max": [1, 2, 2],
        "seconds": [10.0, 10.0, 10.0],
        "bytes_up": [800, 1200, 1600],
        "bytes_down": [1600, 3200, 4800],
    }
    assert history.timetable(3).tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert [(round, client, text) for round, _, client, text in history.events] == [
        (2, 2, "joined"),
        (2, 1, "left for good"),
        (2, 0, "was accepted with another app or other data"),
    ]


def test_a_round_without_bytes_ends_their_sum(tmp_path):
    lines = [round_line(t, [0]) for t in range(3)]
    del lines[1]["bytes_up"]
    assert history_of(tmp_path, lines).curves()["bytes_up"] == [400, None, None]


def test_long_jobs_keep_the_last_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_history, "POINTS", 4)
    monkeypatch.setattr(fleet_history, "SHOWN_ROUNDS", 3)
    monkeypatch.setattr(fleet_history, "SHOWN_CLIENTS", 2)
    history = history_of(tmp_path, [round_line(t, [t % 3]) for t in range(10)], clients=3)
    assert history.curves()["round"] == [0, 3, 6, 9]
    assert history.first_shown == 7
    # Rounds 7 to 9 of clients 0 and 1: client 2 answered in round 8.
    assert history.timetable(3).tolist() == [[0, 1], [0, 0], [1, 0]]


def test_a_log_that_was_written_anew_is_read_anew(tmp_path):
    history = FleetHistory()
    folder = write_log(tmp_path, [round_line(t, [0]) for t in range(5)])
    log = FleetLog(folder, history)
    log.status()
    other = tmp_path / "other"
    other.write_text(json.dumps(round_line(0, [1])) + "\n")
    other.replace(folder / "rounds.jsonl")
    log.status()
    assert history.curves()["round"] == [0]
    assert np.flatnonzero(history.timetable(4)).tolist() == [1]
