from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpbc.deployment.server.directory import ServerDirectory, link_intervals
from fedpbc.experiments.overrides import gathered
from fedpbc.links import Setting, Timetable
from fedpbc.links.trace import fleet_log_settings
from tests.commandline import fedpbc, ran, refused


def write_log(path, table, seconds):
    """The link log of a job with these contacts; its rounds took as long as they did."""
    with ServerDirectory(path) as folder:
        folder.lines = [
            {"round": t, "began_s": 2.5 * t, "ended_s": 2.5 * (t + 1), "active": found}
            for t, found in enumerate(np.flatnonzero(row).tolist() for row in table)
        ]
        folder.save_links(table.shape[1], seconds)
    return path / "links.csv"


@given(
    table=arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 4))),
    seconds=st.sampled_from([0.1, 1 / 3, 7.0, 60.05]),
)
def test_the_schemes_find_the_rounds_again(table, seconds, tmp_path_factory):
    """Also where nobody was heard at the end, or one client never; and after the end once more."""
    rounds, clients = table.shape
    place = write_log(tmp_path_factory.mktemp("log"), table, seconds)
    assert fleet_log_settings(str(place)) == (seconds, clients)
    options = {"file": str(place), "round_seconds": seconds}
    found = Timetable.draw("trace", Setting(0, clients, 3 * rounds), options)
    assert (found.block(3 * rounds, clients) == np.tile(table, (3, 1))).all()
    setting = Setting(seed=0, clients=clients, rounds=rounds)
    found = Timetable.draw("table", setting, {"file": str(place.with_name("timetable.csv"))})
    assert (found.block(rounds, clients) == table).all()


def test_intervals_of_a_hand_worked_log():
    found = link_intervals([[0, 2], [0], [], [2]], clients=4, round_seconds=10.0)
    assert found == [
        (0, 5.0, 25.0),
        (0, 40.0, 40.0),
        (1, 40.0, 40.0),
        # The second half of the last round is where the log begins again.
        (2, 0.0, 5.0),
        (2, 5.0, 15.0),
        (2, 35.0, 40.0),
        (2, 40.0, 40.0),
        (3, 40.0, 40.0),
    ]


def test_a_comparison_replays_the_log(tmp_path):
    random = np.random.default_rng(1)
    table = random.random((12, 5)) < 0.5
    table[:, 0] = False
    log = write_log(tmp_path / "server", table, 60.0)
    small = ("--data", "digits", "--rounds", 12, "--algorithms", "fedpbc", "--seeds", "0")
    ran("compare", "--links", "trace", "--trace", log, *small, "--out", tmp_path / "all", "--json")
    config = (tmp_path / "all/fedpbc/seed-0/config.toml").read_text()
    assert "clients = 5\n" in config
    assert "round_seconds = 60.0\n" in config
    summary = json.loads((tmp_path / "all/fedpbc/seed-0/summary.json").read_text())
    assert summary["cost"]["uploads"] == table.sum()


def test_what_is_said_outranks_the_log(tmp_path):
    log = write_log(tmp_path, np.ones((2, 3), dtype=bool), 60.0)
    assert gathered(None, None, {"trace": log}) == {
        "links": {"name": "trace", "file": str(log), "round_seconds": 60.0},
        "clients": 3,
    }
    said = gathered(None, ["links.round_seconds=30"], {"trace": log, "clients": 9})
    assert (said["links"]["round_seconds"], said["clients"]) == (30, 9)
    quadratic = gathered(None, None, {"trace": log} | {"links": "trace"})
    assert quadratic["clients"] == 3
    config = tmp_path / "q.toml"
    config.write_text('task = "quadratic"\n[links]\nname = "trace"\nround_seconds = 5.0\n')
    found = gathered(config, None, {"trace": log})
    assert "clients" not in found
    assert found["links"]["round_seconds"] == 5.0


def test_another_trace_says_nothing_of_rounds(tmp_path):
    phones = tmp_path / "phones.csv"
    phones.write_text("client,online_from_s,online_until_s\na,0,20\n")
    assert gathered(None, None, {"trace": phones}) == {
        "links": {"name": "trace", "file": str(phones)}
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a file that can be read"),
        ("# round_seconds = 60.0\nclient\n", "its first line is 'client'"),
        (
            "# round_seconds = 60.0\nclient,online_from_s,online_until_s\n0,5,2\n",
            "line 3 is '0,5,2'",
        ),
        ("# round_seconds = 60.0\nclient,online_from_s,online_until_s\n0,0,0\n", "no intervals"),
    ],
)
def test_a_bad_log_is_one_line(tmp_path, text, message):
    place = tmp_path / "log.csv"
    if text is not None:
        place.write_text(text)
    line = refused(fedpbc("run", "--trace", place, "--data", "digits", "--out", tmp_path / "r"))
    assert message in line
    assert not (tmp_path / "r").exists()


def test_a_trace_goes_with_no_other_scheme(tmp_path):
    line = refused(fedpbc("run", "--links", "markov", "--trace", tmp_path / "a.csv"))
    assert "left out with --links markov" in line
