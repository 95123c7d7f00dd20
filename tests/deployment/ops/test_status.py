from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from rich.console import Console

from fedpbc.deployment.ops import status as status_module
from fedpbc.deployment.ops.display import fleet_table, in_words, line_of, watch
from fedpbc.deployment.ops.status import FleetLog, Plan, read_plan
from fedpbc.deployment.server.directory import ServerDirectory
from fedpbc.deployment.settings import FleetSection
from fedpbc.experiments.configuration import General
from tests.commandline import fedpbc, ran, refused
from tests.deployment.fake_network import FakeNetwork, make_server, make_trainers, small_task


def line(t, active, *, refused=(), selected=None, everyone=True, seconds=10.0, at=1000.0):
    return {
        "round": t,
        "began_s": t * seconds,
        "ended_s": (t + 1) * seconds,
        "at": at + (t + 1) * seconds,
        "everyone": everyone,
        "active": list(active),
        "selected": list(active if selected is None else selected),
        "checksums": {},
        "refused": list(refused),
        "known": [],
    }


def write(folder, lines, *, clients=4, rounds=10, heard=(), more=""):
    folder.mkdir(exist_ok=True)
    (folder / "fleet.toml").write_text(
        f"clients = {clients}\nrounds = {rounds}\n[fleet]\nround_seconds = 10.0\n{more}"
    )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    nodes = {i: {"node": 900 + i, "at": 1000.0} for i in heard}
    (folder / "heard.json").write_text(json.dumps(nodes))
    return folder


def test_a_hand_worked_fleet(tmp_path):
    lines = [line(0, [0, 1]), line(1, [0], refused=[1]), line(2, [0], refused=[1])]
    found = FleetLog(write(tmp_path, lines, heard=[0, 1, 2])).status(now=1033.0)
    assert (found.done, found.answered, found.heard) == (3, 1, 3)
    assert [one.link for one in found.clients] == [
        "answered",
        "refused",
        "no answer yet",
        "never heard",
    ]
    assert [one.node for one in found.clients] == [900, 901, 902, None]
    assert [one.last_round for one in found.clients] == [2, 0, None, None]
    assert [one.seconds_ago for one in found.clients] == [3.0, 23.0, None, None]
    # Who answered in the last round owes none; who never did owes all three.
    assert [one.owed for one in found.clients] == [0, 2, 3, 3]
    # t − τ, τ = −1 before the first contact.
    assert [one.staleness for one in found.clients] == [1, 3, 4, 4]
    assert [one.refused for one in found.clients] == [0, 2, 0, 0]
    # Seven rounds of 10 s, of which 3 s are over.
    assert found.seconds_left == pytest.approx(67.0)
    assert found.quiet_for == 3.0


def test_a_client_that_answers_again_is_silent_no_longer(tmp_path):
    lines = [line(0, [0, 1]), line(1, [1]), line(2, [1])]
    folder = write(tmp_path, lines, clients=2, heard=[0, 1])
    log = FleetLog(folder)
    assert [one.link for one in log.status().clients] == ["silent since 1", "answered"]
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line(3, [0, 1])) + "\n")
    assert [one.link for one in log.status().clients] == ["answered", "answered"]
    assert [one.staleness for one in log.status().clients] == [1, 1]


def test_owed_is_by_what_was_counted_and_staleness_by_contact(tmp_path):
    lines = [line(0, [0, 1], selected=[1]), line(1, [0, 1], selected=[1])]
    found = FleetLog(write(tmp_path, lines, clients=2)).status()
    assert [one.owed for one in found.clients] == [2, 0]
    assert [one.staleness for one in found.clients] == [1, 1]
    # Where a missed round is not made up for, nothing is owed.
    lines = [line(0, [0], everyone=False)]
    found = FleetLog(write(tmp_path, lines, clients=2)).status()
    assert [one.owed for one in found.clients] == [None, None]


def test_the_time_left_is_by_the_last_rounds(tmp_path):
    slow = [line(t, [0], seconds=100.0) for t in range(3)]
    quick = []
    for k in range(25):
        one = line(3 + k, [0])
        one["began_s"], one["ended_s"], one["at"] = 300.0 + 2 * k, 302.0 + 2 * k, 1302.0 + 2 * k
        quick.append(one)
    found = FleetLog(write(tmp_path, slow + quick, rounds=38)).status(now=1350.0)
    assert found.seconds_left == pytest.approx(20.0)


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path):
    folder = write(tmp_path, [line(0, [0])])
    log, text = FleetLog(folder), json.dumps(line(1, [1])) + "\n"
    for k in (1, 20, len(text) - 1):
        (folder / "rounds.jsonl").write_text(json.dumps(line(0, [0])) + "\n" + text[:k])
        assert log.status().done == 1
        assert FleetLog(folder).status().done == 1
    (folder / "rounds.jsonl").write_text(json.dumps(line(0, [0])) + "\n" + text)
    assert log.status().done == 2


def test_a_resumed_server_takes_rounds_back(tmp_path):
    folder = write(tmp_path, [line(t, [0]) for t in range(5)])
    log = FleetLog(folder)
    assert log.status().clients[1].staleness == 6
    # As ServerFolder does it: another file under the same name.
    again = tmp_path / "again"
    again.write_text("".join(json.dumps(line(t, [0, 1])) + "\n" for t in range(5)))
    again.replace(folder / "rounds.jsonl")
    assert log.status().clients[1].staleness == 1
    (folder / "rounds.jsonl").unlink()
    assert log.status().done == 0


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    folder = write(tmp_path, [line(t, [0]) for t in range(5)])
    seen, original = [], status_module.read_line
    monkeypatch.setattr(
        status_module, "read_line", lambda text: seen.append(text) or original(text)
    )
    log = FleetLog(folder)
    log.status()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line(5, [1])) + "\n")
    assert log.status().done == 6
    assert len(seen) == 6


def test_of_thousands_the_worst_are_shown(tmp_path):
    lines = [line(t, range(0, 2000, t + 1)) for t in range(3)]
    found = FleetLog(write(tmp_path, lines, clients=2000, heard=range(2000))).status(1030.0)
    worst = found.worst(30)
    assert [one.staleness for one in worst] == [3] * 30
    assert [one.client for one in worst][:3] == [1, 5, 7]
    console = Console(width=80, record=True, force_terminal=False)
    console.print(fleet_table(found))
    shown = console.export_text()
    assert len(shown.splitlines()) < 40
    assert "the 30 of 2,000 that were away longest" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut_off(tmp_path, width):
    lines = [line(t, [0]) for t in range(1000, 1003)]
    for t, one in enumerate(lines):
        one["round"] = t
    folder = write(tmp_path, lines, heard=[0, 1], rounds=2000)
    big = 18446744073709551615
    (folder / "heard.json").write_text(json.dumps({0: {"node": big, "at": 1.0}}))
    found = FleetLog(folder).status(now=99999.0)
    for links, words in (
        (None, ["answered", "never heard"]),
        ({0: True, 1: False}, ["cut", "up"]),
    ):
        console = Console(width=width, record=True, force_terminal=False)
        console.print(fleet_table(found, width=width, links=links))
        shown = console.export_text()
        assert all(len(one) <= width for one in shown.splitlines())
        for text in (*words, "client", "refused", "contact", "rounds", "stale-", "24.7 h"):
            assert text in shown
        assert (str(big) in shown) == (width == 120 or links is not None)
        assert str(big)[:11] in shown


def test_a_server_that_seems_gone_is_said(tmp_path):
    folder = write(tmp_path, [line(0, [0])])
    console = Console(width=80, record=True)
    console.print(fleet_table(FleetLog(folder).status(now=1010.0 + 600)))
    assert "no round has ended for 10 min: is the server running?" in console.export_text()


def test_what_a_real_server_writes(tmp_path):
    task = small_task()
    network = FakeNetwork(
        make_trainers(task, tmp_path), lambda i, t: "lost" if i == 1 and t > 0 else "ok"
    )
    server = tmp_path / "server"
    with ServerDirectory(server) as folder:
        make_server(task, "fedpbc", folder, network, rounds=3).run()
    (server / "fleet.toml").write_text("clients = 3\nrounds = 3\n")
    found = FleetLog(server).status()
    assert found.is_over
    assert [one.node for one in found.clients] == [100, 101, 102]
    assert [(one.link, one.owed, one.staleness) for one in found.clients] == [
        ("answered", 0, 1),
        ("silent since 1", 2, 3),
        ("answered", 0, 1),
    ]
    assert all(one.seconds_ago < 60 for one in found.clients)
    # Who was first heard when outlasts the server.
    before = (server / "heard.json").read_text()
    with ServerDirectory(server) as folder:
        make_server(task, "fedpbc", folder, network, rounds=4).run()
    assert (server / "heard.json").read_text() == before


def test_before_the_first_round(tmp_path):
    folder = write(tmp_path, [], heard=[2], more="wait_for = 3\n")
    (folder / "rounds.jsonl").unlink()
    found = FleetLog(folder).status()
    assert line_of(found) == "waiting: 1 client heard, the first round begins with 3"
    (folder / "heard.json").unlink()
    assert FleetLog(folder).status().heard == 0


def test_the_command_ends_by_what_to_run_next(tmp_path):
    folder = write(tmp_path, [line(0, [0, 3])], heard=[0, 3])
    shown = ran("fleet", "status", folder).out
    assert "fedpbc: 1 of 10 rounds done; 2 of 4 answered in the last" in shown
    assert shown.splitlines()[-1] == (
        f"next: 'fedpbc fleet status {folder} --watch' keeps this current"
    )
    write(folder, [line(t, [0]) for t in range(10)])
    over = ran("fleet", "status", folder, "--watch").out.splitlines()
    assert over[0].startswith("fedpbc: 10 of 10 rounds done")
    assert f"fedpbc fleet check {folder}" in over[1]
    assert f"fedpbc compare --trace {folder}/links.csv" in over[2]


def test_watching_without_a_terminal_is_a_line_a_round(tmp_path, capsys):
    folder = write(tmp_path, [], rounds=3)
    looks = iter(range(6))

    def sleep(_):
        t = next(looks) // 2
        if t < 3:
            (folder / "rounds.jsonl").write_text(
                "".join(json.dumps(line(k, [0])) + "\n" for k in range(t + 1))
            )

    assert watch(folder, sleep=sleep).is_over
    told = capsys.readouterr().out.splitlines()
    assert [one.split(";")[0] for one in told[1:]] == [
        f"fedpbc: {k} of 3 rounds done" for k in (1, 2, 3)
    ]


def test_watching_in_a_terminal_keeps_the_table(tmp_path):
    folder = write(tmp_path, [line(0, [0])], rounds=2)
    console = Console(width=100, height=40, force_terminal=True, record=True)

    def sleep(_):
        write(folder, [line(0, [0]), line(1, [0, 1])], rounds=2)

    assert watch(folder, console=console, sleep=sleep).is_over
    assert "2 of 2 rounds done; 2 of 4 answered" in console.export_text()


@pytest.mark.parametrize("command", ["status", "check"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a fleet server's folder, with fleet.toml in it"),
        ("clients = ", "with a readable fleet.toml"),
        ("rounds = 3", "with clients, rounds and [fleet] in its fleet.toml"),
        ("clients = 3\nfleet = 7", "with clients, rounds and [fleet] in its fleet.toml"),
    ],
)
def test_a_wrong_folder_is_one_line(tmp_path, command, text, message):
    if text is not None:
        (tmp_path / "fleet.toml").write_text(text)
    said = refused(fedpbc("fleet", command, tmp_path))
    assert said.startswith(f"FOLDER is {str(tmp_path)!r}, but should be ")
    assert message in said


def test_a_damaged_list_of_nodes_is_one_line(tmp_path):
    folder = write(tmp_path, [line(0, [0])])
    (folder / "heard.json").write_text("[1]")
    assert "with a readable heard.json" in refused(fedpbc("fleet", "status", folder))


def test_what_is_left_out_is_what_the_configuration_has(tmp_path):
    (tmp_path / "fleet.toml").write_text("clients = 2")
    defaults = {field.name: field.default for field in fields(FleetSection)}
    assert read_plan(tmp_path) == Plan(
        rounds=General().rounds,
        clients=2,
        algorithm="fedpbc",
        round_seconds=defaults["round_seconds"],
        wait_for=defaults["wait_for"],
    )
    (tmp_path / "fleet.toml").write_text('clients = 2\n[algorithm]\nname = "mifa"\n')
    assert read_plan(tmp_path).algorithm == "mifa"


def test_neither_torch_nor_flower_is_needed():
    code = (
        "import sys\n"
        "import fedpbc.deployment.ops.status, fedpbc.deployment.ops.display, fedpbc.cli.fleet\n"
        "assert not {'torch', 'flwr', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_times_in_words():
    assert [in_words(s) for s in (0, 99.4, 100, 5999, 6000, 172800)] == [
        "0 s",
        "99 s",
        "2 min",
        "100 min",
        "1.7 h",
        "2.0 d",
    ]
