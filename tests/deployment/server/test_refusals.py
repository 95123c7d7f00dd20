"""What a fleet does about answers that are refused, and about devices that are away."""

from __future__ import annotations

import pytest

from fedpbc.deployment.protocol.messages import refusal
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.errors import FedpbcError
from tests.deployment.fake_network import (
    ROUND,
    FakeNetwork,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    small_task,
)

REASON = "there is no camera"


def durations(folder):
    return [line["ended_s"] - line["began_s"] for line in folder.lines]


class Refusing(FakeNetwork):
    """Devices of which some refuse in some rounds, and some are away."""

    def __init__(self, trainers, refuses=lambda client, t: True, online=None):
        super().__init__(trainers, lambda client, t: "ok")
        self.refuses, self.online = refuses, online or (lambda clock: range(len(trainers)))

    def reply(self, client, payload):
        if payload.kind == "work" and self.refuses(client, payload.integer("round")):
            return refusal(f"{REASON} at client {client}")
        return super().reply(client, payload)

    def nodes(self):
        return [100 + client for client in self.online(self.clock)]


class Glitch(FakeNetwork):
    """Client 2 moves 500 times as far as it should, in some rounds."""

    def __init__(self, path, glitches, algorithm="fedpbc"):
        self.task, self.faulty, self.is_wrong = small_task(), small_task(), False
        trainers = make_trainers(self.task, path, algorithm, lazy=True)
        trainers[2]._make_task = lambda settings: self.faulty
        self.faulty.local_rounds = self.local_rounds
        self.glitches = glitches
        super().__init__(trainers, lambda i, t: "ok")

    def local_rounds(self, client, model, *rest):
        end = self.task.local_rounds(client, model, *rest)
        return model + 500 * (end - model) if self.is_wrong else end

    def reply(self, client, payload):
        self.is_wrong = payload.kind == "work" and payload.integer("round") in self.glitches
        return super().reply(client, payload)


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "scaffold"])
def test_a_device_recovers_from_a_glitch(tmp_path, algorithm):
    """What it had come to is too far off for good; from the last model of the server it is not."""
    network = Glitch(tmp_path, range(3, 6), algorithm)
    task = network.task
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=12, norm_factor=20.0)
        server.run()
        assert [2 in line["refused"] for line in folder.lines] == [3 <= t < 6 for t in range(12)]
        assert [2 in line["active"] for line in folder.lines] == [not 3 <= t < 6 for t in range(12)]
        assert_same(server, simulated(task, algorithm, folder.lines))


def test_a_device_recovers_although_a_message_is_lost_and_both_ends_are_restarted(tmp_path):
    network = Glitch(tmp_path, [3])
    task = network.task
    network.fate = lambda i, t: "lost" if (i, t) == (2, 4) else "restart" if i == 2 else "ok"
    for rounds in (4, 5, 8):
        with ServerDirectory(tmp_path / "server") as folder:
            server = make_server(task, "fedpbc", folder, network, rounds, norm_factor=20.0)
            server.run()
            assert_same(server, simulated(task, "fedpbc", folder.lines))
            active = [2 in line["active"] for line in folder.lines]
    assert active == [*[True] * 3, False, False, *[True] * 3]


def test_refusals_do_not_end_a_round_and_an_answer_does(tmp_path):
    task = small_task()
    network = Refusing(make_trainers(task, tmp_path), lambda client, t: t == 1 or client == t == 2)
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=4).run()
        assert [line["active"] for line in folder.lines] == [[0, 1, 2], [], [0, 1], [0, 1, 2]]
        took = durations(folder)
    assert took[1] == pytest.approx(ROUND)
    assert max(took[0], took[2], took[3]) < 1


def test_uploads_that_are_refused_do_not_end_a_round(tmp_path):
    """They arrive complete, and only their norm tells."""
    task = small_task()
    network = FakeNetwork(make_trainers(task, tmp_path), lambda client, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=3, norm_bound=1e-6)
        with pytest.raises(FedpbcError, match="no answer counted in any of the 3 rounds"):
            server.run()
        assert durations(folder) == pytest.approx([ROUND] * 3)
    assert not (tmp_path / "server/models").exists()


def test_a_job_that_every_device_refuses_ends_with_their_reason(tmp_path):
    task = small_task()
    network = Refusing(make_trainers(task, tmp_path))
    reason = rf"in rounds 0 to 5 all clients .* were refused \(3\); client 0: {REASON} at client 0"
    with ServerDirectory(tmp_path / "server") as folder:
        with pytest.raises(FedpbcError, match=reason):
            make_server(task, "fedpbc", folder, network, rounds=200).run()
        assert durations(folder) == pytest.approx([ROUND] * 6)
    assert not (tmp_path / "server/finished.json").exists()
    # The reason is gone: the same job goes on.
    network.refuses = lambda client, t: False
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, network, rounds=9)
        server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))
        assert folder.lines[-1]["active"] == [0, 1, 2]


def test_a_job_goes_on_while_somebody_may_serve_it(tmp_path):
    """One answers now and then; one neither answers nor refuses."""
    task = small_task()
    network = Refusing(make_trainers(task, tmp_path), lambda client, t: client or t % 4)
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=30).run()
    silent = Refusing(make_trainers(task, tmp_path / "b"), lambda client, t: t > 0)
    silent.fate = lambda client, t: "lost" if client == 1 and t else "ok"
    with ServerDirectory(tmp_path / "other") as folder:
        make_server(task, "fedpbc", folder, silent, rounds=30).run()
        assert sum(durations(folder)) > 29 * ROUND


def test_rounds_do_not_wait_for_who_has_not_been_seen_for_a_while(tmp_path):
    """The transport says who was heard of in the last 45 seconds."""
    task, gone, back = small_task(), 20.0, 100.0

    def is_away(clock):
        return gone <= clock < back

    network = Refusing(
        make_trainers(task, tmp_path),
        lambda client, t: False,
        lambda clock: range(2 if is_away(clock) and is_away(clock - 45) else 3),
    )
    network.fate = lambda client, t: "lost" if client == 2 and is_away(network.clock) else "ok"
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=220).run()
        took = {line["began_s"]: line["ended_s"] - line["began_s"] for line in folder.lines}
        assert folder.lines[-1]["active"] == [0, 1, 2]
    assert max(took.values()) == pytest.approx(ROUND)
    assert all(took[began] < 2 for began in took if not gone - 1 <= began < gone + 45)
    # Until then a round waits for it.
    assert sum(took[began] < 2 for began in took if gone + 1 <= began < gone + 40) == 0
