from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedpbc.deployment.ops import check as check_module
from fedpbc.deployment.ops.check import ViewCheck, check_job
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.deployment.server.server_loop import Server
from fedpbc.deployment.settings import read_fleet
from fedpbc.engines import SerialEngine
from fedpbc.errors import FedpbcError
from tests.commandline import fedpbc, ran, refused
from tests.deployment.fake_network import FakeNetwork, make_trainers

pytestmark = pytest.mark.slow

DIGITS = """
rounds = {rounds}
seed = 2
clients = 3
algorithm = {algorithm}
data = "digits"
[train]
local_steps = 2
learning_rate = 0.1
[fleet]
round_seconds = 10.0
wait_for = 3
views_every = 3
"""
MINE = """
import torch
from torch import nn

def model():
    return nn.Linear(6, 4)

def data(client):
    random = torch.Generator().manual_seed(client)
    return torch.randn(20, 6, generator=random), torch.arange(20) % 4
"""


def fate(client, round):
    return "lost" if (client + round) % 3 == 0 else "ok"


def train(folder, text, *, stop_after=None, change=lambda network, settings: None):
    """Run a job as a server does, with links that fail."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fleet.toml").write_text(text)
    settings = read_fleet(folder / "fleet.toml")
    task = settings.whole_task()
    network = FakeNetwork(make_trainers(task, folder / "devices", settings.config.algorithm), fate)
    change(network, settings)
    x0, layout = settings.first_model()
    with ServerDirectory(folder) as opened:
        server = Server(
            settings.algorithm(x0),
            settings.training,
            opened,
            network,
            rounds=settings.config.general.rounds,
            layout=layout,
            client_settings=settings.client_settings(),
            fleet=settings.fleet,
            now=network.now,
            sleep=network.wait,
        )
        if stop_after is None:
            server.run()
        else:
            server._wait_for_clients()
            for _ in range(stop_after):
                server.one_round()
    return folder


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "server"
    return train(folder, DIGITS.format(rounds=5, algorithm='"fedpbc"'))


def shift(folder, view, by):
    """Change one parameter of a model by that much."""
    path = folder / f"models/{view}.safetensors"
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    named = load_file(path)
    named = {name: part.clone() for name, part in named.items()}
    next(iter(named.values())).view(-1)[0] += by
    save_file(named, path, about)


@pytest.mark.parametrize(
    "algorithm",
    [
        *('"fedpbc"', '"f3ast"', '"scaffold"', '"focus"', '"area"', '"ca_fed"'),
        '{name = "mifa", memory = "client"}',
        '{name = "amplified_scaffold", window = 2}',
    ],
)
def test_a_fleets_models_are_the_simulators_to_the_bit(tmp_path, algorithm):
    folder = train(tmp_path / "server", DIGITS.format(rounds=5, algorithm=algorithm))
    checks = check_job(folder)
    views = ["server", "averaged"]
    views += ["reported", "corrected"] if "fedpbc" in algorithm else []
    assert [check.view for check in checks] == views
    for check in checks:
        assert (check.rounds, check.difference, check.is_equal) == (5, 0.0, True)
        assert 0 < check.fleet_accuracy == check.simulated_accuracy < 1


def test_a_stopped_job_is_compared_at_the_round_of_its_models(tmp_path):
    text = DIGITS.format(rounds=9, algorithm='"fedpbc"')
    folder = train(tmp_path / "server", text, stop_after=5)
    assert [(check.rounds, check.difference) for check in check_job(folder)] == [(3, 0.0)] * 4
    # A server that is stopped while it writes leaves models of different rounds.
    old = (folder / "models/server.safetensors").read_bytes()
    train(folder, text)
    (folder / "models/server.safetensors").write_bytes(old)
    assert [(check.rounds, check.difference) for check in check_job(folder)] == [
        (3, 0.0),
        (9, 0.0),
        (9, 0.0),
        (9, 0.0),
    ]


def test_a_long_job_uses_processes_and_never_an_engine_with_other_bits(job, monkeypatch):
    created = []

    class Processes(SerialEngine):
        def __init__(self, task):
            created.append(task)
            super().__init__(task)

    monkeypatch.setattr(check_module, "PoolEngine", Processes)
    monkeypatch.setattr(check_module, "usable_cores", lambda: 2)
    check_job(job)
    assert not created
    monkeypatch.setattr(check_module, "SHORT", 0.0)
    assert [check.difference for check in check_job(job)] == [0.0] * 4
    assert created


def test_the_command_reports_equal_models(job):
    output = ran("fleet", "check", job).out
    # Headings have two lines.
    assert re.search(
        r"largest +fleet +simulator *\n view +rounds +difference +test % +test %", output
    )
    assert "the fleet's models equal the simulator's: no difference above 1e-06" in output
    assert f"next: 'fedpbc compare --trace {job}'" in output


def test_a_difference_is_one_line_and_exit_code_1(tmp_path):
    folder = train(tmp_path / "server", DIGITS.format(rounds=2, algorithm='"fedavg"'))
    shift(folder, "averaged", 5e-7)
    assert ran("fleet", "check", folder).code == 0
    shift(folder, "averaged", 2e-3)
    ended = fedpbc("fleet", "check", folder)
    assert ended.code == 1
    assert ended.err == (
        "fedpbc: the fleet's models do not equal the simulator's: the view averaged differs by "
        "2.0e-03, more than 1e-06; no logged answer differs: the server's own part does, or its "
        "files\n"
    )


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "scaffold"])
def test_the_first_client_and_round_that_deviate_are_named(tmp_path, algorithm):
    def faulty(network, settings):
        """From round 4 on client 2 does not train as it should, from round 6 on client 0, too."""
        task, wrong, faults = settings.whole_task(), settings.whole_task(), {2: 4, 0: 6}
        honest, is_wrong = network.reply, []
        wrong.local_rounds = lambda *given: task.local_rounds(*given) + 0.01 * bool(is_wrong)
        for client in faults:
            network.trainers[client]._make_task = lambda settings: wrong

        def reply(client, payload):
            is_wrong.clear()
            if payload.kind == "work" and payload.integer("round") >= faults.get(client, 99):
                is_wrong.append(client)
            return honest(client, payload)

        network.reply = reply

    text = DIGITS.format(rounds=8, algorithm=f'"{algorithm}"')
    folder = train(tmp_path / "server", text, change=faulty)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    first = next(t for t, line in enumerate(lines) if t >= 4 and 2 in line["active"])
    ended = fedpbc("fleet", "check", folder)
    assert ended.code == 1
    assert ended.err.endswith(
        f"; the first answer that is not the simulator's is that of client 2 in round {first}\n"
    )


def test_a_model_that_is_not_finite_is_not_equal(tmp_path):
    folder = train(tmp_path / "server", DIGITS.format(rounds=1, algorithm='"fedavg"'))
    shift(folder, "server", float("nan"))
    assert fedpbc("fleet", "check", folder).code == 1
    assert not ViewCheck("server", 1, float("nan"), None, None).is_equal


def test_a_users_model_and_data(tmp_path):
    server = tmp_path / "server"
    server.mkdir()
    (server / "mine.py").write_text(MINE)
    text = 'rounds = 3\nclients = 3\n[fleet]\napp = "mine.py"\nround_seconds = 10.0\nwait_for = 3\n'
    checks = check_job(train(server, text))
    assert [(check.difference, check.fleet_accuracy) for check in checks] == [(0.0, None)] * 4
    assert "test %" not in ran("fleet", "check", server, "--trust").out
    # A real server does not have the devices' data.
    app = MINE.replace("    random =", '    open("/nowhere/samples")\n    random =')
    (server / "mine.py").write_text(app)
    line = refused(fedpbc("fleet", "check", server, "--trust"))
    assert line.startswith(f"{server} cannot be compared with the simulator on this machine")
    assert "data(0)" in line
    assert "/nowhere/samples" in line


def test_a_job_without_models_names_the_next_command(tmp_path):
    folder = train(tmp_path / "server", DIGITS.format(rounds=9, algorithm='"fedpbc"'), stop_after=2)
    line = refused(fedpbc("fleet", "check", folder))
    assert "has no models yet" in line
    assert f"'fedpbc fleet status {folder}'" in line


def test_damaged_files_are_named(tmp_path):
    folder = train(tmp_path / "server", DIGITS.format(rounds=3, algorithm='"fedavg"'))
    log = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text("".join(log.splitlines(keepends=True)[:2]))
    with pytest.raises(FedpbcError, match="models of round 3 but a log of 2"):
        check_job(folder)
    line = json.loads(log.splitlines()[0]) | {"active": [7]}
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(FedpbcError, match=r"rounds\.jsonl is damaged in line 1"):
        check_job(folder)
    (folder / "rounds.jsonl").write_text(log)
    save_file({"other": torch.ones(1)}, folder / "models/server.safetensors", {"rounds": "3"})
    with pytest.raises(FedpbcError, match=r"server\.safetensors does not match the model"):
        check_job(folder)
    (folder / "models/server.safetensors").write_bytes(b"no")
    with pytest.raises(FedpbcError, match=r"server\.safetensors is damaged"):
        check_job(folder)


@pytest.mark.parametrize("name", ["rounds.jsonl", "models/server.safetensors", "models"])
def test_a_link_out_of_the_folder_is_not_followed(job, tmp_path, name):
    folder = tmp_path / "sent"
    shutil.copytree(job, folder)
    if (folder / name).is_dir():
        shutil.rmtree(folder / name)
    else:
        (folder / name).unlink()
    (folder / name).symlink_to(job / name)
    line = refused(fedpbc("fleet", "check", folder))
    assert "link" in line or "is not a regular file" in line
