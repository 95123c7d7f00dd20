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


def test_a_resumed_one_calls_the_log_as_the_user_did(tmp_path):
    log = tmp_path / "plant.csv"
    log.write_text("client,online_from_s,online_until_s\n0,0,3600\n1,600,7200\n")
    links = {"name": "trace", "file": str(log)}
    request = AdviceRequest(*prepare_values({"data": "digits", "links": links}))
    assert request.links_name == "plant.csv"
    directory = AdviceDirectory(tmp_path / "a")
    with directory.opened(request):
        loaded, _ = directory.load(trust=True)
    assert loaded.links_name == "plant.csv"
    assert loaded.values["links"]["file"] != str(log)
    # The same question, from the folder or from the command line, is the same advice.
    for again in (loaded, request):
        with directory.opened(again):
            assert directory.load(trust=True)[0].links_name == "plant.csv"
