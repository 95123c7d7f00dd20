"""A client whose data or app changes, and a second device with its key."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import torch

from fedpbc.deployment.device.trainer import Trainer
from fedpbc.deployment.ops.status import FleetLog
from fedpbc.deployment.protocol.messages import MessageError, Payload, TrainReply
from fedpbc.deployment.server.identities import (
    Identities,
    Identity,
    accept_identities,
    refused_identities,
)
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.errors import InputError
from tests.commandline import fedpbc, ran, refused
from tests.deployment.fake_network import (
    FakeNetwork,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    small_task,
)

OTHER = 1
FLEET = "clients = 3\nrounds = 6\n[fleet]\nwait_for = 3\n"


def changed_task():
    """Client 1 has other samples; the others' are the same."""
    task = small_task()
    inputs = task.data.inputs
    inputs[task.parts[OTHER]] = inputs[task.parts[OTHER]] + 1
    return task


def trainer_with(task, network, **options):
    before = network.trainers[OTHER]
    return Trainer(OTHER, before.folder, lambda settings: task, lazy=True, **options)


def run_rounds(task, folder, network, rounds):
    server = make_server(task, "fedpbc", folder, network, rounds)
    server.run()
    return server


def active(folder):
    return [line["active"] for line in folder.lines]


@pytest.fixture
def server_path(tmp_path):
    path = tmp_path / "server"
    path.mkdir()
    (path / "fleet.toml").write_text(FLEET)
    return path


def test_changed_data_is_refused_until_it_is_accepted(tmp_path, server_path, caplog):
    caplog.set_level(logging.INFO)
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), lambda i, t: "ok")
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 2)
    network.trainers[OTHER] = trainer_with(changed_task(), network)
    with ServerDirectory(server_path) as folder:
        server = run_rounds(task, folder, network, 4)
        assert active(folder) == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
        # As if its link had been down: the result is exact.
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert "(client 1): it has other data than before" in caplog.text
    assert refused_identities(server_path) == {OTHER: "other data than before"}
    assert FleetLog(server_path).status().changed == {OTHER: "other data than before"}
    assert "refused: client 1 has other data than before" in ran("fleet", "accept", server_path).out
    ran("fleet", "accept", server_path, "--client", "1")
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 6)
        assert active(folder)[4:] == [[0, 1, 2], [0, 1, 2]]
        assert [line["changed"] for line in folder.lines[4:]] == [[OTHER], []]
    assert refused_identities(server_path) == {}


def test_the_change_of_a_running_job_is_accepted_while_it_runs(tmp_path, server_path):
    task, events = small_task(), []

    def fate(client, t):
        if client == 0 and t == 2:
            network.trainers[OTHER] = trainer_with(changed_task(), network)
        if client == 0 and t == 4:
            events.append(refused_identities(server_path))
            accept_identities(server_path, [OTHER])
        return "ok"

    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), fate)
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 6)
        assert active(folder) == [*[[0, 1, 2]] * 2, *[[0, 2]] * 2, *[[0, 1, 2]] * 2]
    assert events == [{OTHER: "other data than before"}]


def test_a_twin_with_other_data_is_refused_and_one_with_the_same_does_no_harm(
    tmp_path, server_path
):
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), lambda i, t: "ok")
    original, folder_of_twin = network.trainers[OTHER], tmp_path / "twin"
    other_twin = Trainer(OTHER, folder_of_twin / "a", lambda settings: changed_task(), lazy=True)
    same_twin = Trainer(OTHER, folder_of_twin / "b", lambda settings: task, lazy=True)
    order = [original, other_twin, same_twin, other_twin, original, same_twin]

    def fate(client, t):
        if client == OTHER:
            network.trainers[OTHER] = order[t]
        return "ok"

    network.fate = fate
    with ServerDirectory(server_path) as folder:
        server = run_rounds(task, folder, network, 6)
        assert [OTHER in each for each in active(folder)] == [True, False, True, False, True, True]
        assert_same(server, simulated(task, "fedpbc", folder.lines))


def test_another_app_is_refused(tmp_path, server_path):
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path, app="1f"), lambda i, t: "ok")
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 1)
    network.trainers[OTHER] = trainer_with(task, network, app="2e")
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 2)
        assert active(folder)[1] == [0, 2]
    assert refused_identities(server_path) == {OTHER: "other app than before"}


class WithoutFingerprints:
    """A device of an earlier version."""

    def __init__(self, trainer):
        self.trainer, self.folder = trainer, trainer.folder

    def handle(self, payload: Payload) -> Payload:
        reply = self.trainer.handle(payload)
        header = {k: v for k, v in reply.header.items() if k not in ("app", "data")}
        return replace(reply, header=header)


def test_a_fleet_of_an_earlier_version_continues_and_is_then_known(tmp_path, server_path):
    task = small_task()
    trainers = make_trainers(task, tmp_path, lazy=True)
    network = FakeNetwork([WithoutFingerprints(each) for each in trainers], lambda i, t: "ok")
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 2)
    network.trainers = trainers
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 4)
        assert active(folder) == [[0, 1, 2]] * 4
    network.trainers = [trainers[0], trainer_with(changed_task(), network), trainers[2]]
    with ServerDirectory(server_path) as folder:
        run_rounds(task, folder, network, 5)
        assert active(folder)[4] == [0, 2]


def test_work_on_other_samples_is_not_continued(tmp_path):
    """A restarted trainer with other data must not build on what the old data gave."""
    task, other = small_task(), changed_task()
    network = FakeNetwork(make_trainers(task, tmp_path, lazy=True), lambda i, t: "ok")
    clean = FakeNetwork(make_trainers(other, tmp_path / "clean", lazy=True), lambda i, t: "ok")
    requests = []

    def lost(client, t):
        return "unheard" if client == OTHER else "ok"

    network.fate = lost
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, 2)
        server.run()
        server.rounds = 3
        request = server._request(OTHER, 0.0).pack()
        requests = [trainer_with(other, network), clean.trainers[OTHER]]
        models = [
            TrainReply.unpack(trainer.handle(request)).upload["model"].array()
            for trainer in requests
        ]
    assert (models[0] == models[1]).all()


def test_a_damaged_file_is_ignored_with_a_line(tmp_path, caplog):
    (tmp_path / "identities.json").write_text("{")
    identities = Identities(tmp_path, "job")
    assert "ignored identities.json" in caplog.text
    assert identities.problem(0, Identity("", "a" * 32)) is None
    identities.save()
    assert json.loads((tmp_path / "identities.json").read_text())["clients"]["0"]["data"]
    (tmp_path / "accepted.json").write_text("[]")
    assert identities.problem(0, Identity("", "b" * 32)) is not None
    assert "ignored accepted.json" in caplog.text


def test_another_job_starts_anew(tmp_path):
    first = Identities(tmp_path, "first")
    assert first.problem(0, Identity("", "a" * 32)) is None
    first.save()
    assert Identities(tmp_path, "first").problem(0, Identity("", "b" * 32)) is not None
    assert Identities(tmp_path, "second").problem(0, Identity("", "b" * 32)) is None


def test_only_refused_clients_can_be_accepted(server_path):
    with pytest.raises(InputError, match="client is 2, but should be one that is refused"):
        accept_identities(server_path, [2])
    line = refused(fedpbc("fleet", "accept", server_path, "--client", "2"))
    assert line.startswith("client is 2, but should be one that is refused for a change: none is")
    assert not (server_path / "accepted.json").exists()
    assert "no client is refused" in ran("fleet", "accept", server_path).out


def test_what_is_no_fingerprint_is_refused(tmp_path):
    task = small_task()
    [trainer, *_] = make_trainers(task, tmp_path)
    reply = TrainReply("job", 0, 0, {}, app="x" * 10_000)
    with pytest.raises(ValueError, match="malformed"):
        Identity.parsed(vars(reply))
    with pytest.raises(MessageError):
        TrainReply.unpack(replace(reply.pack(), header={**reply.pack().header, "data": 3}))
    assert torch.equal(trainer._make_task("").init(), task.init())
