"""The gateway's log has a budget of lines."""

from __future__ import annotations

import pytest

from fedpbc.deployment.server.rejection_log import RejectionLog


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def log(clock):
    return RejectionLog(now=lambda: clock[0])


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_line_is_logged_once_per_minute(log, clock, caplog):
    for clock[0] in (0.0, 10.0, 59.0, 61.0):
        log.add("rejected a:", "no key")
    assert lines(caplog) == ["rejected a: no key"] * 2


def test_two_thousand_paths_are_five_lines_and_a_number(log, clock, caplog):
    for number in range(2000):
        log.add("rejected a:", f"GET '/{number}'")
    clock[0] = 61.0
    log.flush()
    assert len(lines(caplog)) == 6
    assert lines(caplog)[-1] == "1995 more lines were left out in a minute"


def test_strangers_cannot_use_up_the_lines_of_devices(log, caplog):
    for number in range(2000):
        log.add(f"rejected 192.0.2.{number}:", "no key")
    assert len(lines(caplog)) == 30
    log.add("rejected client-3 (192.0.2.1):", "more than 1 bytes in an hour", is_device=True)
    assert "client-3" in lines(caplog)[-1]
