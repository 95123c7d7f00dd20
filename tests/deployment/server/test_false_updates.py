"""A device with a valid key that sends false models: what is refused, and what it cannot move."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpbc.algorithms import Aggregation
from fedpbc.deployment.protocol.messages import Payload, TrainReply, Vector
from fedpbc.deployment.server.server_directory import ServerDirectory
from fedpbc.errors import InputError
from tests.deployment.fake_network import (
    FakeNetwork,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    small_task,
)

LARGEST = np.float32(3.4e38)
CLIENTS, LIAR = 5, 3


class Liar:
    """A trainer whose uploads are changed."""

    def __init__(self, honest, change) -> None:
        self._honest, self._change = honest, change

    def handle(self, payload: Payload) -> Payload:
        reply = self._honest.handle(payload)
        if reply.kind != "answer":
            return reply
        answer = TrainReply.unpack(reply)
        upload = {n: Vector.of(self._change(v.array())) for n, v in answer.upload.items()}
        return replace(answer, upload=upload).pack()


def with_a_liar(task, path, algorithm, change, fate=lambda i, t: "ok"):
    trainers = make_trainers(task, path, algorithm, lazy=True)
    trainers[LIAR] = Liar(trainers[LIAR], change)
    return FakeNetwork(trainers, fate)


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "mifa", "fedvarp", "fedawe", "scaffold"])
def test_the_largest_finite_numbers_are_never_counted(tmp_path, caplog, algorithm):
    caplog.set_level(logging.WARNING)
    task = small_task(CLIENTS)
    network = with_a_liar(task, tmp_path, algorithm, lambda values: np.full_like(values, LARGEST))
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=8)
        server.run()
        assert_same(server, simulated(task, algorithm, folder.lines))
        assert all(LIAR not in line["active"] for line in folder.lines)
        assert all(line["refused"] == [LIAR] for line in folder.lines)
        assert all(model.abs().max() < 100 for model in server.state.view_models().values())
    assert "(client 3): the norm of" in caplog.text


def test_alone_in_the_first_rounds_too(tmp_path):
    """With nobody to compare with, only absurd norms are refused."""
    task = small_task(CLIENTS)
    network = with_a_liar(
        task,
        tmp_path,
        "mifa",
        lambda values: np.full_like(values, LARGEST),
        fate=lambda i, t: "ok" if t > 2 or i == LIAR else "lost",
    )
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "mifa", folder, network, rounds=5)
        server.run()
        assert [line["active"] for line in folder.lines][:3] == [[], [], []]
        assert_same(server, simulated(task, "mifa", folder.lines))


def test_a_restarted_server_remembers_the_norms(tmp_path):
    """The liar is the first to answer after the restart, and is alone."""
    task = small_task(CLIENTS)
    rounds = {"stop": 4}
    network = with_a_liar(
        task,
        tmp_path,
        "fedpbc",
        lambda values: values + np.float32(1e4),
        fate=lambda i, t: "ok" if (i == LIAR) == (t >= rounds["stop"]) else "lost",
    )
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=rounds["stop"]).run()
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=6).run()
        assert [line["active"] for line in folder.lines[4:]] == [[], []]
        assert [line["refused"] for line in folder.lines[4:]] == [[LIAR], [LIAR]]


def test_the_bound_can_be_disabled_and_then_a_round_may_count_nothing(tmp_path):
    task = small_task(CLIENTS)
    network = with_a_liar(task, tmp_path, "fedau", lambda values: np.full_like(values, LARGEST))
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedau", folder, network, rounds=4, norm_factor=0.0)
        server.run()
        # Finite at first; then the server's model would overflow, and nobody is counted.
        assert [] in [line["active"] for line in folder.lines]
        assert all(torch.isfinite(model).all() for model in server.state.view_models().values())


@pytest.mark.parametrize(
    "aggregation",
    [
        Aggregation(name="median"),
        Aggregation(name="trimmed_mean", trim=0.25, clip=0.2),
        Aggregation(clip=0.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["fedpbc", "mifa"])
def test_robust_means_are_the_simulators(tmp_path, algorithm, aggregation):
    task = small_task(CLIENTS)

    def fate(client, t):
        return np.random.default_rng((7, client, t)).choice(["ok", "ok", "lost", "late"])

    network = FakeNetwork(make_trainers(task, tmp_path, algorithm, lazy=True), fate)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, network, rounds=9, aggregation=aggregation)
        server.run()
        assert_same(server, simulated(task, algorithm, folder.lines, aggregation))


def test_a_job_keeps_its_aggregation(tmp_path):
    task = small_task(CLIENTS)
    network = FakeNetwork(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, network, rounds=1).run()
    median = Aggregation(name="median")
    with (
        ServerDirectory(tmp_path / "server") as folder,
        pytest.raises(InputError, match=r"aggregation.name is median, but the job .* with mean"),
    ):
        make_server(task, "fedpbc", folder, network, rounds=2, aggregation=median)
