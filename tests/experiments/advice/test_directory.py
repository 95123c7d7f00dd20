from __future__ import annotations

import pytest

from fedpbc.experiments.advice import directory as advice_directory
from fedpbc.experiments.advice.directory import AdviceDirectory, Session
from fedpbc.experiments.advice.request import AdviceRequest, prepare_values
from fedpbc.experiments.advice.schedule import Schedule

VALUES = {"data": "digits", "clients": 8, "links": {"name": "bernoulli", "p": 0.25}}
SCHEDULE = Schedule(12, ("fedavg", "mifa"), 2, 1, 3, True, 9.0, False)


def test_a_kill_while_the_schedule_is_kept_loses_neither_command_nor_time(tmp_path, monkeypatch):
    request, directory = AdviceRequest(*prepare_values(VALUES)), AdviceDirectory(tmp_path / "a")
    session = Session("fedpbc advise --minutes 5", 42.0)

    def killed(*_):
        raise KeyboardInterrupt

    with directory.opened(request):
        directory.keep_session(session)
        # Whatever comes after the schedule is written.
        monkeypatch.setattr(advice_directory, "replace_checksummed", killed)
        directory.keep_schedule(request, SCHEDULE)
    assert directory.session() == session
    assert directory.load()[1] == SCHEDULE
    with pytest.raises(KeyboardInterrupt):
        directory.keep_session(session)
