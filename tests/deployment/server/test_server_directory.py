from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpbc.deployment.server.server_directory import ServerDirectory, link_intervals
from fedpbc.experiments.overrides import configuration_values
from fedpbc.links import Setting, Timetable
from fedpbc.links.trace import fleet_log_settings
from tests.commandline import fedpbc, ran, refused


def write_log(path, table, seconds):
    """The link log of a job with this timetable; its rounds took 2.5 seconds."""
    with ServerDirectory(path) as folder:
        folder.lines = [
            {"round": t, "began_s": 2.5 * t, "ended_s": 2.5 * (t + 1), "active": active}
            for t, active in enumerate(np.flatnonzero(row).tolist() for row in table)
        ]
        folder.save_links(table.shape[1], seconds)
    return path / "links.csv"


@given(
    table=arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 4))),
    seconds=st.sampled_from([0.1, 1 / 3, 7.0, 60.05]),
)
def test_the_schemes_replay_the_logged_rounds(table, seconds, tmp_path_factory):
    """Also with no replies at the end, or none of a client; and repeated after the end."""
    rounds, clients = table.shape
    path = write_log(tmp_path_factory.mktemp("log"), table, seconds)
    assert fleet_log_settings(str(path)) == (seconds, clients)
    options = {"file": str(path), "round_seconds": seconds}
    replayed = Timetable.draw("trace", Setting(0, clients, 3 * rounds), options)
    assert (replayed.block(3 * rounds, clients) == np.tile(table, (3, 1))).all()
    setting = Setting(seed=0, clients=clients, rounds=rounds)
    replayed = Timetable.draw("table", setting, {"file": str(path.with_name("timetable.csv"))})
    assert (replayed.block(rounds, clients) == table).all()


def test_intervals_of_a_hand_worked_log():
    intervals = link_intervals([[0, 2], [0], [], [2]], clients=4, round_seconds=10.0)
    assert intervals == [
        (0, 5.0, 25.0),
        (0, 40.0, 40.0),
        (1, 40.0, 40.0),
        # What reaches beyond the end belongs to the start of the repeated log.
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


def test_options_override_the_log(tmp_path):
    log = write_log(tmp_path, np.ones((2, 3), dtype=bool), 60.0)
    assert configuration_values(trace=log) == {
        "links": {"name": "trace", "file": str(log), "round_seconds": 60.0},
        "clients": 3,
    }
    options = configuration_values(None, {"clients": 9}, ["links.round_seconds=30"], trace=log)
    assert (options["links"]["round_seconds"], options["clients"]) == (30, 9)
    quadratic = configuration_values(None, {"links.name": "trace"}, trace=log)
    assert quadratic["clients"] == 3
    config = tmp_path / "q.toml"
    config.write_text('task = "quadratic"\n[links]\nname = "trace"\nround_seconds = 5.0\n')
    options = configuration_values(config, trace=log)
    assert "clients" not in options
    assert options["links"]["round_seconds"] == 5.0


def test_other_traces_do_not_set_the_rounds(tmp_path):
    phones = tmp_path / "phones.csv"
    phones.write_text("client,online_from_s,online_until_s\na,0,20\n")
    assert configuration_values(trace=phones) == {"links": {"name": "trace", "file": str(phones)}}


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
    path = tmp_path / "log.csv"
    if text is not None:
        path.write_text(text)
    line = refused(fedpbc("run", "--trace", path, "--data", "digits", "--out", tmp_path / "r"))
    assert message in line
    assert not (tmp_path / "r").exists()


def test_a_trace_goes_with_no_other_scheme(tmp_path):
    line = refused(fedpbc("run", "--links", "markov", "--trace", tmp_path / "a.csv"))
    assert "left out with --links markov" in line
