from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedpbc.deployment.ops import demo as demo_module
from fedpbc.deployment.ops.check import check_job
from fedpbc.deployment.ops.demo import Demo, kept_to_plan, plan_demo, prepare_folder
from fedpbc.errors import FedpbcError, InputError
from fedpbc.links import Setting, Timetable
from tests.commandline import fedpbc, refused

SMALL = {"rounds": 4, "data": {"name": "digits"}}


@pytest.fixture(autouse=True)
def as_if_flower_were_here(monkeypatch, request):
    """Nothing below starts it, but for one test that needs it."""
    if "fleet" not in request.keywords:
        monkeypatch.setattr(demo_module, "need_flower", lambda: None)


def plan(nodes=3, seconds=5.0, **more):
    return plan_demo({**SMALL, **more}, nodes, seconds)


def test_links_are_cut_as_the_scheme_says():
    planned = plan(4, links={"name": "cyclic", "p": 0.5}, seed=3)
    setting = Setting(3, 4, 4, base_probabilities=np.full(4, 0.5))
    assert (planned.up == Timetable.draw("cyclic", setting).block(4, 4)).all()
    assert planned.links["name"] == "cyclic"


def test_a_real_server_is_not_told_of_links():
    planned = plan(fleet={"views_every": 2})
    assert planned.given == {
        **SMALL,
        "clients": 3,
        "fleet": {"round_seconds": 5.0, "wait_for": 3, "views_every": 2},
    }


def test_links_of_a_few_clients_are_up_often_enough():
    assert plan().links["name"] == "bernoulli"
    assert plan().links["p"] == 0.6
    assert plan(links={"name": "markov"}).links["p"] == 0.6
    assert "p" not in {k for k, v in plan(links={"sigma": 2.0}).links.items() if v is not None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"downlink": "always"}, "downlink is given, but should be left out"),
        ({"algorithm": "fedavg_known"}, "no server knows them"),
        ({"links": {"name": "markof"}}, "markov"),
        ({"rounds": 0}, "rounds is 0"),
        ({"fleet": {"app": "mine.py"}}, "a demo trains one of our own tasks"),
        ({"fleet": 3}, "a table"),
        ({"fleet": {"round_second": 3}}, "round_seconds"),
    ],
)
def test_wrong_input_is_found_before_anything_is_written(given, message):
    with pytest.raises(InputError, match=message):
        plan(**given)


def test_the_command_refuses_in_one_line_and_writes_nothing(tmp_path):
    out = tmp_path / "d"
    for options, message in (
        (("--nodes", 0), "--nodes is 0, but should be at least 1"),
        (("--round-seconds", 0), "fleet.round_seconds is 0.0"),
        (("--links", "foggy"), "links is 'foggy'"),
        (("--set", "data=digits", "--set", "downlink=always"), "left out"),
    ):
        assert message in refused(fedpbc("fleet", "demo", "--out", out, *options))
    assert not out.exists()


def test_only_an_older_demo_is_replaced(tmp_path):
    prepare_folder(tmp_path / "new", overwrite=False)
    (tmp_path / "mine").mkdir()
    prepare_folder(tmp_path / "mine", overwrite=False)
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(InputError, match="that of an older demo"):
        prepare_folder(tmp_path / "mine", overwrite=True)
    (tmp_path / "old/server").mkdir(parents=True)
    (tmp_path / "old/server/fleet.toml").touch()
    with pytest.raises(InputError, match="with --overwrite"):
        prepare_folder(tmp_path / "old", overwrite=False)
    prepare_folder(tmp_path / "old", overwrite=True)
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "mine/thesis.tex").exists()


class FaultProxy:
    def __init__(self):
        self.is_open = True

    def cut(self):
        self.is_open = False

    def mend(self):
        self.is_open = True


class Supervisor:
    dead = "nothing"

    def deaths(self, name):
        return 3 if name == self.dead else 0

    def last_words(self, name):
        return ["Traceback", "", "no such file"]


class StandIn:
    """A fleet whose rounds are written by hand."""

    def __init__(self, folder, given, **_):
        self.server, self.clients = folder / "server", given["clients"]
        self.server.mkdir(parents=True)
        (self.server / "fleet.toml").write_text(f"clients = {self.clients}\nrounds = 4\n")
        (folder / "logs").mkdir()
        self.gates = [FaultProxy() for _ in range(self.clients)]
        self.supervisor = Supervisor()
        self.tended = 0

    def tend(self):
        self.tended += 1
        return (self.server / "finished.json").exists()

    def hear(self, clients):
        heard = {i: {"node": i, "at": 1.0} for i in range(clients)}
        (self.server / "heard.json").write_text(json.dumps(heard))

    def log(self, *active):
        lines = [
            {"round": t, "began_s": t, "ended_s": t + 1, "at": t, "everyone": True, "active": a}
            | {"selected": a, "refused": []}
            for t, a in enumerate(active)
        ]
        (self.server / "rounds.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))

    def close(self):
        pass


@pytest.fixture
def running(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_module, "LocalFleet", StandIn)
    planned = plan()
    table = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=bool)
    with Demo(tmp_path / "d", type(planned)(planned.given, planned.links, table)) as demo:
        yield demo


def test_each_rounds_row_is_applied_when_it_begins(running):
    fleet = running.fleet
    fleet.hear(2)
    running.pass_time(0.15)
    # While clients are waited for, all can be reached.
    assert running.links() == {0: True, 1: True, 2: True}
    fleet.hear(3)
    rounds = []
    for done in range(4):
        fleet.log(*[[0]] * done)
        rounds.append(list(running.links().values()))
        running.pass_time(0.15)
        assert list(running.links().values()) == rounds[-1]
    assert rounds == running.planned.up.tolist()
    assert not running.done
    fleet.log(*[[0]] * 4)
    (running.server / "finished.json").touch()
    running.pass_time(5.0)
    assert running.done
    assert kept_to_plan(running.server, running.planned.up) == (
        "links: 12 rounds of a client, 4 of them cut; 5 answers were late with the link up "
        "(more --round-seconds would help); 1 got through before the cut"
    )


def test_what_does_not_start_is_one_line_with_its_last_words(running):
    running.fleet.supervisor.dead = "trainer-1"
    with pytest.raises(FedpbcError) as caught:
        running.pass_time(5.0)
    assert str(caught.value) == (
        "the fleet does not start: trainer-1 ends again and again: Traceback / no such file; see "
        f"{running.folder}/logs/trainer-1.log"
    )


def test_a_client_that_is_never_heard_is_named(running, monkeypatch):
    running.fleet.hear(1)
    monkeypatch.setattr(running, "_patience", 0.0)
    with pytest.raises(FedpbcError, match="client 1 was never heard"):
        running.pass_time(5.0)


def test_what_is_said_on_the_way_goes_to_a_file(running, capfd):
    demo_module.LOG.warning("the job is submitted again")
    assert capfd.readouterr().err == ""
    running.close()
    assert demo_module.LOG.propagate
    demo_module.LOG.warning("later")
    assert (running.folder / "logs/demo.log").read_text().endswith("job is submitted again\n")


def test_what_dies_after_the_start_is_the_supervisors(running):
    running.fleet.hear(3)
    running.fleet.log([0])
    running.pass_time(0.15)
    running.fleet.supervisor.dead = "supernode-1"
    running._tended = 0.0
    running.pass_time(0.15)


def processes_of(folder):
    """Whatever still has something to do with a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            text = (entry / "cmdline").read_bytes()
            if os.fsencode(folder) in text:
                found.append(text)
    return found


@pytest.mark.fleet
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_demo_from_start_to_end(tmp_path, interrupted):
    pytest.importorskip("flwr")
    out = tmp_path / "d"
    command = [sys.executable, "-m", "fedpbc.cli.app", "fleet", "demo", "--out", str(out)]
    command += ["--nodes", "2", "--rounds", "4", "--set", "data=digits"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if interrupted:
        end = time.monotonic() + 120
        while not (out / "server/rounds.jsonl").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=240)
    assert processes_of(out) == []
    if interrupted:
        assert process.returncode == 130
        assert complained == (
            f"fedpbc: interrupted; 'fedpbc fleet status {out}/server' shows how far it came\n"
        )
        return
    assert (process.returncode, complained) == (0, "")
    for line in (
        "fedpbc: 4 of 4 rounds done",
        "the fleet's models are the simulator's: no difference above 1e-06",
        f"next: 'fedpbc compare --trace {out}/server/links.csv'",
    ):
        assert line in said
    assert [(one.rounds, one.difference) for one in check_job(out / "server")] == [(4, 0.0)] * 3
