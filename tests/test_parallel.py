"""Work on several cores."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from fedpbc import parallel


@pytest.mark.parametrize(
    ("cores", "count", "sizes"),
    [(2, 7, [3, 4]), (2, 1, [1]), (4, 3, [1, 1, 1]), (3, 9, [3, 3, 3]), (1, 5, [5])],
)
def test_shares_are_even_and_cover_everything(monkeypatch, cores, count, sizes):
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    found = parallel.shares(count)
    assert [part.stop - part.start for part in found] == sizes
    assert [k for part in found for k in range(count)[part]] == list(range(count))


def test_calls_run_side_by_side(monkeypatch):
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    # Each waits for the other: one after another they would never end.
    barrier = threading.Barrier(2, timeout=60)
    threads = []

    def meet() -> None:
        barrier.wait()
        threads.append(threading.get_ident())

    parallel.in_threads([meet, meet])
    assert len(set(threads)) == 2
    assert threading.get_ident() in threads


def test_a_failure_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        parallel.in_threads([lambda: None, fail])


@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_an_interruption_waits_for_all_threads(monkeypatch):
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    ended = []

    def slow():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        parallel.in_threads([lambda: None, slow])
    assert ended
