"""Worker processes over pipes: results, messages, losses, and the end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from fedpbc.experiments.side_by_side import Ended, side_by_side

pytestmark = pytest.mark.slow


def work(number, task, send, stopped):
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "fail":
        raise MemoryError
    if task == "wait":
        try:
            send("begun")
            while True:
                # Nobody reads these any more when it is told to stop.
                send("x" * 100_000)
                time.sleep(0.001)
        except KeyboardInterrupt:
            assert stopped()
            Path(os.environ["STOPPED_IN_ORDER"]).touch()
        return "stopped"
    if task == "compute":
        try:
            send("begun")
            while True:  # A long round: nobody asks whether to stop.
                sum(range(1000))
        finally:
            Path(os.environ["STOPPED_IN_ORDER"]).touch()
    send(f"message of {number}")
    return f"result of {task}"


def test_tasks_that_end_that_fail_and_whose_process_dies():
    messages = list(side_by_side(work, ["a", "die", "fail", "b"], 2))
    ended = {m.number: m for m in messages if isinstance(m, Ended)}
    assert ended[0] == Ended(0, "result of a")
    assert ended[1].failure == "its process was killed; resume to run it again"
    assert ended[2].failure == "not enough memory"
    assert ended[3] == Ended(3, "result of b")
    assert {m for m in messages if isinstance(m, str)} == {"message of 0", "message of 3"}


def test_what_is_under_way_stops_in_order_when_nobody_listens_any_more(tmp_path, monkeypatch):
    monkeypatch.setenv("STOPPED_IN_ORDER", str(tmp_path / "mark"))
    with closing(side_by_side(work, ["wait", "wait"], 1)) as messages:
        assert next(messages) == "begun"
    assert (tmp_path / "mark").exists()


def test_what_asks_nobody_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setenv("STOPPED_IN_ORDER", str(tmp_path / "mark"))
    with closing(side_by_side(work, ["compute"], 1)) as messages:
        assert next(messages) == "begun"
    assert (tmp_path / "mark").exists()


@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_a_worker_whose_start_is_interrupted_ends_too(monkeypatch, capfd):
    begin, begun = SpawnProcess.start, []

    def begin_and_interrupt(process):
        begin(process)
        begun.append(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SpawnProcess, "start", begin_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(side_by_side(work, ["a"], 1))
    assert [process.is_alive() for process in begun] == [False]
    assert capfd.readouterr() == ("", "")
