from __future__ import annotations

import json
import os
import time
from dataclasses import fields

import pytest

from fedpbc.deployment.ops import status as status_module
from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.deployment.ops.status import FleetLog, StatusSettings, read_job_settings
from fedpbc.deployment.server import round_log
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.settings import FleetSection
from fedpbc.errors import FedpbcError
from fedpbc.experiments.settings import General
from tests.commandline import fedpbc, ran, refused
from tests.deployment.fake_network import FakeNetwork, make_server, make_trainers, small_task
from tests.deployment.round_logs import round_line, write_log


def test_a_worked_example(tmp_path):
    lines = [round_line(0, [0, 1]), *(round_line(t, [0], refused=[1]) for t in (1, 2))]
    write_log(tmp_path, lines, connected=[0, 1, 2])
    with only_launcher("server", tmp_path):
        status = FleetLog(tmp_path).status(now=1033.0)
    assert (status.rounds_done, status.answered, status.connected) == (3, 1, 3)
    assert [client.link for client in status.clients] == [
        "answered",
        "refused",
        "no answer yet",
        "never connected",
    ]
    assert [client.node for client in status.clients] == [900, 901, 902, None]
    assert [client.last_round for client in status.clients] == [2, 0, None, None]
    assert [client.seconds_ago for client in status.clients] == [3.0, 23.0, None, None]
    # A client that answered in the last round owes none; one that never did owes all three.
    assert [client.owed for client in status.clients] == [0, 2, 3, 3]
    # t − τ, τ = −1 before the first contact.
    assert [client.staleness for client in status.clients] == [1, 3, 4, 4]
    assert [client.refused for client in status.clients] == [0, 2, 0, 0]
    # Seven rounds of 10 s, less the 3 s since the last.
    assert status.seconds_left == pytest.approx(67.0)
    assert status.idle_seconds == 3.0


def test_bytes_add_up_and_are_unknown_in_older_logs(tmp_path):
    lines = [round_line(0, [0, 1]), round_line(1, [0])]
    status = FleetLog(write_log(tmp_path, lines)).status()
    assert (status.bytes_up, status.bytes_down) == (1200, 3200)
    for name in ("bytes_up", "bytes_down"):
        del lines[0][name]
    status = FleetLog(write_log(tmp_path, lines)).status()
    assert (status.bytes_up, status.bytes_down) == (None, None)
    for wrong in (-1, 1.5, "9", True, None, 10**30):
        lines[1]["bytes_up"] = wrong
        with pytest.raises(FedpbcError, match="damaged in line 2: its bytes are not a count"):
            FleetLog(write_log(tmp_path, lines)).status()


def test_a_client_that_answers_again_is_no_longer_silent(tmp_path):
    lines = [round_line(0, [0, 1]), round_line(1, [1]), round_line(2, [1])]
    folder = write_log(tmp_path, lines, clients=2, connected=[0, 1])
    log = FleetLog(folder)
    assert [client.link for client in log.status().clients] == ["silent since 1", "answered"]
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(round_line(3, [0, 1])) + "\n")
    assert [client.link for client in log.status().clients] == ["answered", "answered"]
    assert [client.staleness for client in log.status().clients] == [1, 1]


def test_since_when_a_client_answers_or_is_silent(tmp_path):
    lines = [round_line(0, [0, 1, 2]), round_line(1, [0]), round_line(2, [0, 1])]
    lines[2]["left"] = [2]
    clients = FleetLog(write_log(tmp_path, lines)).status(now=1040.0).clients
    # Round t ended at 1010 + 10 t; client 3 was never heard from.
    assert [c.since_round for c in clients] == [0, 2, 2, None]
    assert [c.since_seconds for c in clients] == [30.0, 10.0, 10.0, None]
    lines.append(round_line(3, [1]))
    clients = FleetLog(write_log(tmp_path, lines)).status(now=1040.0).clients
    assert [(c.since_round, c.since_seconds) for c in clients[:2]] == [(3, 10.0), (2, 10.0)]


def test_staleness_counts_from_the_round_in_which_a_client_joined(tmp_path):
    """As in the simulator: as if it had been synchronised in the round before."""
    lines = [round_line(t, [0]) for t in range(6)]
    lines[4]["joined"] = [2]
    status = FleetLog(write_log(tmp_path, lines, clients=2)).status()
    assert [client.staleness for client in status.clients] == [1, 7, 3]
    assert [client.owed for client in status.clients] == [0, 6, 2]


def test_who_has_left_is_not_among_those_that_take_part(tmp_path):
    lines = [round_line(t, [0, 1]) for t in range(3)]
    lines[1]["left"] = [2]
    status = FleetLog(write_log(tmp_path, lines, clients=3, connected=[0, 1, 2])).status()
    assert [client.client for client in status.members] == [0, 1]
    assert (status.connected, status.job.clients) == (2, 2)
    # It has been away longest, and nobody waits for it.
    assert [client.client for client in status.longest_absent(2)] == [0, 1]


def test_owed_rounds_follow_what_was_counted_and_staleness_the_contacts(tmp_path):
    lines = [round_line(0, [0, 1], selected=[1]), round_line(1, [0, 1], selected=[1])]
    status = FleetLog(write_log(tmp_path, lines, clients=2)).status()
    assert [client.owed for client in status.clients] == [2, 0]
    assert [client.staleness for client in status.clients] == [1, 1]
    # Where a missed round is not made up for, nothing is owed.
    lines = [round_line(0, [0], everyone=False)]
    status = FleetLog(write_log(tmp_path, lines, clients=2)).status()
    assert [client.owed for client in status.clients] == [None, None]


def test_the_time_left_is_estimated_from_recent_rounds(tmp_path):
    slow = [round_line(t, [0], seconds=100.0) for t in range(3)]
    quick = []
    for k in range(25):
        line = round_line(3 + k, [0])
        line["began_s"], line["ended_s"], line["at"] = 300.0 + 2 * k, 302.0 + 2 * k, 1302.0 + 2 * k
        quick.append(line)
    write_log(tmp_path, slow + quick, rounds=38)
    with only_launcher("server", tmp_path):
        status = FleetLog(tmp_path).status(now=1350.0)
    assert status.seconds_left == pytest.approx(20.0)


def shown(folder):
    """What the command prints, without its line breaks."""
    return " ".join(ran("fleet", "status", folder).out.split())


def test_a_server_that_does_not_run_is_reported_with_since_when(tmp_path):
    folder = write_log(tmp_path, [], connected=[0])
    (folder / "rounds.jsonl").unlink()
    assert shown(folder).startswith("the server has not been started; 1 of 4 clients connected")
    with only_launcher("server", folder):
        assert "the server" not in shown(folder)
        write_log(tmp_path, [round_line(0, [0])], connected=[0])
        assert " left " in shown(folder)
    os.utime(folder / "rounds.jsonl", (1e9, 1e9))
    output = shown(folder)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1e9))
    assert output.startswith(f"the server is not running since {when}; fedpbc: 1 of 10 rounds")
    assert " left " not in output
    status = json.loads(ran("fleet", "status", folder, "--json").out)
    assert (status["is_running"], status["last_sign"], status["seconds_left"]) == (False, 1e9, None)
    # A job that is done needs no server.
    write_log(tmp_path, [round_line(0, [0])], rounds=1)
    assert "the server" not in shown(folder)


def test_nothing_is_estimated_from_absurd_numbers(tmp_path):
    log = write_log(tmp_path, [round_line(0, [0])], rounds=1.7e308)
    assert FleetLog(log).status().seconds_left is None


def test_an_incomplete_line_is_read_once_it_is_complete(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0])])
    log, text = FleetLog(folder), json.dumps(round_line(1, [1])) + "\n"
    for k in (1, 20, len(text) - 1):
        (folder / "rounds.jsonl").write_text(json.dumps(round_line(0, [0])) + "\n" + text[:k])
        assert log.status().rounds_done == 1
        assert FleetLog(folder).status().rounds_done == 1
    (folder / "rounds.jsonl").write_text(json.dumps(round_line(0, [0])) + "\n" + text)
    assert log.status().rounds_done == 2


def test_a_resumed_server_rewrites_the_log(tmp_path):
    folder = write_log(tmp_path, [round_line(t, [0]) for t in range(5)])
    log = FleetLog(folder)
    assert log.status().clients[1].staleness == 6
    # As ServerDirectory does it: another file under the same name.
    rewritten = tmp_path / "rewritten"
    rewritten.write_text("".join(json.dumps(round_line(t, [0, 1])) + "\n" for t in range(5)))
    rewritten.replace(folder / "rounds.jsonl")
    assert log.status().clients[1].staleness == 1
    (folder / "rounds.jsonl").unlink()
    assert log.status().rounds_done == 0


def test_only_new_lines_are_read(tmp_path, monkeypatch):
    folder = write_log(tmp_path, [round_line(t, [0]) for t in range(5)])
    parsed, original = [], round_log.parse_round
    monkeypatch.setattr(
        status_module, "parse_round", lambda *given: parsed.append(given) or original(*given)
    )
    log = FleetLog(folder)
    log.status()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(round_line(5, [1])) + "\n")
    assert log.status().rounds_done == 6
    assert len(parsed) == 6


def test_the_log_of_a_real_server(tmp_path):
    task = small_task()
    network = FakeNetwork(
        make_trainers(task, tmp_path), lambda i, t: "lost" if i == 1 and t > 0 else "ok"
    )
    server = tmp_path / "server"
    with ServerDirectory(server) as folder:
        make_server(task, "fedpbc", folder, network, rounds=3).run()
    (server / "fleet.toml").write_text("clients = 3\nrounds = 3\n")
    status = FleetLog(server).status()
    assert status.is_over
    assert [client.node for client in status.clients] == [100, 101, 102]
    assert [(client.link, client.owed, client.staleness) for client in status.clients] == [
        ("answered", 0, 1),
        ("silent since 1", 2, 3),
        ("answered", 0, 1),
    ]
    assert all(client.seconds_ago < 60 for client in status.clients)
    # The nodes and times of first contact survive the server.
    before = (server / "heard.json").read_text()
    with ServerDirectory(server) as folder:
        make_server(task, "fedpbc", folder, network, rounds=4).run()
    assert (server / "heard.json").read_text() == before


@pytest.mark.parametrize("command", ["status", "check"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "the folder of a fleet's server, with fleet.toml"),
        ("clients = ", "with a readable fleet.toml"),
        ("rounds = 3", "with valid clients, rounds and [fleet] in its fleet.toml"),
        ("clients = 3\nfleet = 7", "with valid clients, rounds and [fleet] in its fleet.toml"),
    ],
)
def test_a_wrong_folder_is_one_line(tmp_path, command, text, message):
    if text is not None:
        (tmp_path / "fleet.toml").write_text(text)
    output = refused(fedpbc("fleet", command, tmp_path))
    assert output.startswith(f"FOLDER is {str(tmp_path)!r}, but should be ")
    assert message in output


def test_damaged_nodes_are_one_line(tmp_path):
    folder = write_log(tmp_path, [round_line(0, [0])])
    (folder / "heard.json").write_text("[1]")
    assert "with a readable heard.json" in refused(fedpbc("fleet", "status", folder))


def test_defaults_are_those_of_the_configuration(tmp_path):
    (tmp_path / "fleet.toml").write_text("clients = 2")
    defaults = {field.name: field.default for field in fields(FleetSection)}
    assert read_job_settings(tmp_path) == StatusSettings(
        rounds=General().rounds,
        clients=2,
        algorithm="fedpbc",
        round_seconds=defaults["round_seconds"],
        wait_for=defaults["wait_for"],
    )
    (tmp_path / "fleet.toml").write_text('clients = 2\n[algorithm]\nname = "mifa"\n')
    assert read_job_settings(tmp_path).algorithm == "mifa"


@pytest.mark.parametrize("name", ["rounds.jsonl", "heard.json", "fleet.toml"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path, name):
    outside = write_log(tmp_path / "outside", [round_line(t, [0]) for t in range(7)])
    folder = write_log(tmp_path / "sent", [round_line(0, [0])])
    (folder / name).unlink()
    (folder / name).symlink_to(outside / name)
    ended = fedpbc("fleet", "status", folder)
    assert "7" not in ended.out
    assert name in refused(ended)
