from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedpbc.deployment.ops import demo as demo_module
from fedpbc.deployment.ops.check import check_job
from fedpbc.deployment.ops.demo import (
    Demo,
    Replacement,
    check_folder,
    describe_cuts,
    plan_demo,
)
from fedpbc.errors import FedpbcError, InputError
from fedpbc.links import Setting, Timetable
from tests.commandline import content, fedpbc, ran, refused

SMALL = {"rounds": 4, "data": {"name": "digits"}}


@pytest.fixture(autouse=True)
def without_flower(monkeypatch, request):
    """Only the test with real processes needs Flower."""
    if "fleet" not in request.keywords:
        monkeypatch.setattr(demo_module, "require_flower", lambda: None)


def make_plan(nodes=3, seconds=5.0, **overrides):
    return plan_demo({**SMALL, **overrides}, nodes, seconds)


def test_links_are_cut_as_the_scheme_says():
    plan = make_plan(4, links={"name": "cyclic", "p": 0.5}, seed=3)
    setting = Setting(3, 4, 4, base_probabilities=np.full(4, 0.5))
    assert (plan.up == Timetable.draw("cyclic", setting).block(4, 4)).all()
    assert plan.links["name"] == "cyclic"


def test_the_server_does_not_know_the_links():
    plan = make_plan(fleet={"views_every": 2})
    assert plan.configuration == {
        **SMALL,
        "clients": 3,
        "fleet": {"round_seconds": 5.0, "wait_for": 3, "views_every": 2},
    }


def test_links_of_a_few_clients_are_up_often_enough():
    assert make_plan().links["name"] == "bernoulli"
    assert make_plan().links["p"] == 0.6
    assert make_plan(links={"name": "markov"}).links["p"] == 0.6
    assert "p" not in {k for k, v in make_plan(links={"sigma": 2.0}).links.items() if v is not None}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"downlink": "always"}, "leave out downlink: on a real link both"),
        ({"algorithm": "fedavg_known"}, "no server knows them"),
        ({"links": {"name": "markof"}}, "markov"),
        ({"rounds": 0}, "rounds is 0"),
        ({"fleet": {"app": "mine.py"}}, "a demo trains a built-in task"),
        ({"fleet": 3}, "a table"),
        ({"fleet": {"round_second": 3}}, "round_seconds"),
    ],
)
def test_wrong_input_is_found_before_anything_is_written(overrides, message):
    with pytest.raises(InputError, match=message):
        make_plan(**overrides)


def test_the_command_refuses_in_one_line_and_writes_nothing(tmp_path):
    out = tmp_path / "d"
    for options, message in (
        (("--clients", 0), "--clients is 0, but should be at least 1"),
        (("--nodes", 2, "--clients", 2), "--nodes is 2, but should be left out"),
        (("--round-seconds", 0), "fleet.round_seconds is 0.0"),
        (("--links", "foggy"), "links is 'foggy'"),
        (("--set", "data=digits", "--set", "downlink=always"), "leave out downlink"),
    ):
        assert message in refused(fedpbc("fleet", "demo", "--out", out, *options))
    assert not out.exists()


def test_only_an_older_demo_is_replaced(tmp_path):
    check_folder(tmp_path / "new", overwrite=False)
    (tmp_path / "mine").mkdir()
    check_folder(tmp_path / "mine", overwrite=False)
    (tmp_path / "mine/thesis.tex").touch()
    # A real fleet, with its authority's key.
    ran("fleet", "init", tmp_path / "real", "--clients", 1, "--host", "127.0.0.1")
    before = content(tmp_path)
    for folder in ("mine", "real", "mine/thesis.tex"):
        with pytest.raises(InputError, match="that of an older demo"):
            check_folder(tmp_path / folder, overwrite=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_an_older_demo_goes_when_the_new_one_has_run(tmp_path, succeeded, killed):
    def write(clients, text):
        for name in ("server", *(f"device-{i}" for i in range(clients)), "logs"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(text)

    first = Replacement(tmp_path, clients=3)
    write(3, "old")
    first.finish(succeeded=True)
    (tmp_path / "notes.txt").write_text("mine")
    before = content(tmp_path)
    check_folder(tmp_path, overwrite=True)
    if killed:
        Replacement(tmp_path, clients=1)
        write(1, "killed")
    new = Replacement(tmp_path, clients=2)
    write(2, "new")
    new.finish(succeeded=succeeded)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    if not succeeded:
        before["fedpbc-manifest.json"] = (tmp_path / "fedpbc-manifest.json").read_bytes()
        assert content(tmp_path) == before
    names = {path.name for path in tmp_path.iterdir()} - {"fedpbc-manifest.json", "notes.txt"}
    last = 2 if succeeded else 3
    assert names == {"server", "logs", *(f"device-{i}" for i in range(last))}
    check_folder(tmp_path, overwrite=True)


def test_an_older_demo_is_back_when_the_disk_is_full_at_once(tmp_path, monkeypatch):
    first = Replacement(tmp_path, clients=1)
    for name in ("server", "device-0", "logs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("old")
    first.finish(succeeded=True)
    before = content(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    with monkeypatch.context() as patched:
        patched.setattr(demo_module, "write_manifest", full)
        with pytest.raises(OSError, match="No space left"):
            Replacement(tmp_path, clients=2)
    assert content(tmp_path) == before
    rename, moved = Path.rename, []

    def rename_once(self, target):
        moved.append(self)
        if len(moved) == 2:
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_once)
    with pytest.raises(OSError, match="Input/output"):
        Replacement(tmp_path, clients=2)
    assert content(tmp_path) == before


class FaultProxy:
    def __init__(self):
        self.is_up = True

    def cut(self):
        self.is_up = False

    def restore(self):
        self.is_up = True


class Supervisor:
    failing = "nothing"

    def service(self, name):
        exits = 3 if name == self.failing else 0
        return SimpleNamespace(exits=exits, last_output=["Traceback", "", "no such file"])


class FakeFleet:
    """A fleet whose log the tests write."""

    def __init__(self, folder, configuration, **_):
        self.server, self.clients = folder / "server", configuration["clients"]
        self.server.mkdir(parents=True)
        (self.server / "fleet.toml").write_text(f"clients = {self.clients}\nrounds = 4\n")
        (folder / "logs").mkdir()
        self.proxies = [FaultProxy() for _ in range(self.clients)]
        self.supervisor = Supervisor()

    def step(self):
        return (self.server / "finished.json").exists()

    def connect(self, clients):
        nodes = {i: {"node": i, "at": 1.0} for i in range(clients)}
        (self.server / "heard.json").write_text(json.dumps(nodes))

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
    monkeypatch.setattr(demo_module, "LocalFleet", FakeFleet)
    plan = make_plan()
    table = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=bool)
    with Demo(tmp_path / "d", type(plan)(plan.configuration, plan.links, table)) as demo:
        yield demo


def test_each_rounds_row_is_applied_when_it_begins(running):
    fleet = running.fleet
    fleet.connect(2)
    running.run_for(0.15)
    # All links are up while the server waits for clients.
    assert running.links() == {0: True, 1: True, 2: True}
    fleet.connect(3)
    rounds = []
    for done in range(4):
        fleet.log(*[[0]] * done)
        rounds.append(list(running.links().values()))
        running.run_for(0.15)
        assert list(running.links().values()) == rounds[-1]
    assert rounds == running.plan.up.tolist()
    assert not running.is_done
    fleet.log(*[[0]] * 4)
    (running.server / "finished.json").touch()
    running.run_for(5.0)
    assert running.is_done
    assert describe_cuts(running.server, running.plan.up) == (
        "links: 12 client rounds, 4 of them cut; 5 answers were late although the link was up "
        "(try more --round-seconds); 1 got through before the cut"
    )


def test_a_process_that_fails_at_start_is_one_line_with_its_output(running):
    running.fleet.supervisor.failing = "trainer-1"
    with pytest.raises(FedpbcError) as caught:
        running.run_for(5.0)
    assert str(caught.value) == (
        "the fleet does not start: trainer-1 keeps exiting: Traceback / no such file; see "
        f"{running.folder}/logs/trainer-1.log"
    )


def test_a_client_that_never_connects_is_named(running, monkeypatch):
    running.fleet.connect(1)
    monkeypatch.setattr(running, "_start_deadline", 0.0)
    with pytest.raises(FedpbcError, match="client 1 has not connected"):
        running.run_for(5.0)


def test_log_messages_go_to_a_file(running, capfd):
    with running:
        demo_module.LOG.warning("submitting the job again")
        assert capfd.readouterr().err == ""
    assert demo_module.LOG.propagate
    demo_module.LOG.warning("later")
    assert (running.folder / "logs/demo.log").read_text().endswith("submitting the job again\n")


def test_a_process_that_fails_later_is_left_to_the_supervisor(running):
    running.fleet.connect(3)
    running.fleet.log([0])
    running.run_for(0.15)
    running.fleet.supervisor.failing = "node-1"
    running._last_step = 0.0
    running.run_for(0.15)


def processes_of(folder):
    """Return the command lines that mention a folder."""
    commands = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            text = (entry / "cmdline").read_bytes()
            if os.fsencode(folder) in text:
                commands.append(text)
    return commands


@pytest.mark.fleet
@pytest.mark.parametrize("interrupted", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("signals_as_in_a_terminal")
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
        process.send_signal(interrupted)
    output, errors = process.communicate(timeout=240)
    assert processes_of(out) == []
    if interrupted:
        assert process.returncode == 128 + interrupted
        assert errors == (
            "fedpbc: stopping… the fleet's processes\n"
            f"fedpbc: interrupted; 'fedpbc fleet status {out}/server' shows its progress\n"
        )
        return
    assert (process.returncode, errors) == (0, "")
    for line in (
        "fedpbc: 4 of 4 rounds done",
        "the fleet's models equal the simulator's: no difference above 1e-06",
        f"next: 'fedpbc compare --trace {out}/server'",
    ):
        assert line in output
    # One check for each view: server, averaged, reported and corrected.
    assert [(c.rounds, c.difference) for c in check_job(out / "server")] == [(4, 0.0)] * 4
