from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedpbc.deployment.protocol.messages import Payload
from fedpbc.deployment.server import directory as folder_module
from fedpbc.deployment.server.directory import ServerDirectory
from fedpbc.errors import FedpbcError, InputError
from fedpbc.storage.tensors import load_state, save_state
from tests.commandline import fedpbc, refused
from tests.deployment.streets import (
    Killed,
    Streets,
    assert_same,
    make_server,
    make_trainers,
    simulated,
    small_task,
)

FATES = ["ok", "ok", "lost", "unheard", "late", "twice"]


def drawn(seed):
    def fate(client, round):
        return np.random.default_rng((seed, client, round)).choice(FATES)

    return fate


def counted(fate, rounds, clients):
    """A^t as it must come out."""
    return [[i for i in range(clients) if fate(i, t) in ("ok", "twice")] for t in range(rounds)]


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg", "fedawe", "mifa", "scaffold"])
@pytest.mark.parametrize("lazy", [True, False])
def test_whatever_the_network_does_the_result_is_the_simulators(tmp_path, algorithm, lazy):
    task, fate = small_task(), drawn(1)
    streets = Streets([], fate)
    streets.trainers = make_trainers(task, tmp_path, lazy=lazy, now=streets.now)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, algorithm, folder, streets, rounds=10)
        server.run()
        lines = folder.lines
        assert_same(server, simulated(task, algorithm, lines))
    assert [line["active"] for line in lines] == counted(fate, 10, 3)
    # One message a round and node.
    assert sorted(streets.asked) == [(i, t) for i in range(3) for t in range(10)]


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_for_any_fates_fedpbc_is_exact(seed, tmp_path_factory):
    task, fate = small_task(), drawn(seed)
    place = tmp_path_factory.mktemp("fleet")
    streets = Streets(make_trainers(task, place, lazy=True), fate)
    with ServerDirectory(place / "server") as folder:
        server = make_server(task, "fedpbc", folder, streets, rounds=6)
        server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))


def test_the_round_ends_at_its_deadline_or_when_all_have_answered(tmp_path):
    task = small_task()
    streets = Streets(
        make_trainers(task, tmp_path), lambda i, t: "lost" if (i, t) == (1, 1) else "ok"
    )
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, streets, rounds=3).run()
        took = [line["ended_s"] - line["began_s"] for line in folder.lines]
    assert took[0] < 1
    assert took[1] == pytest.approx(10.0)
    assert took[2] < 1


def test_a_server_killed_anywhere_goes_on_to_the_same_models(tmp_path, monkeypatch):
    """Before and after each checkpoint, and before and after each line of the log."""
    task, fate = small_task(), drawn(4)
    streets = Streets(make_trainers(task, tmp_path), fate)
    original, originally = folder_module.save_state, ServerDirectory.add_line  # type: ignore[attr-defined]
    steps = {"n": 0, "kill": -1}

    def step(function, *arguments):
        for part in (None, function):
            if part is not None:
                part(*arguments)
            steps["n"] += 1
            if steps["n"] == steps["kill"]:
                raise Killed

    monkeypatch.setattr(folder_module, "save_state", lambda *a: step(original, *a))
    monkeypatch.setattr(ServerDirectory, "add_line", lambda *a: step(originally, *a))
    kills = 0
    for attempt in range(40):
        steps.update(n=0, kill=3 + attempt % 5)
        try:
            with ServerDirectory(tmp_path / "server") as folder:
                server = make_server(task, "fedpbc", folder, streets, rounds=8)
                server.run()
                log = (tmp_path / "server/rounds.jsonl").read_text().splitlines()
                lines = [json.loads(line) for line in log]
                assert [line["round"] for line in lines] == list(range(8))
                assert_same(server, simulated(task, "fedpbc", lines))
                break
        except Killed:
            kills += 1
    assert kills >= 4


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    task, fate = small_task(), drawn(2)
    streets = Streets(make_trainers(task, tmp_path), fate)
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, streets, rounds=5).run()
    newest = tmp_path / "server/checkpoint-1.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, streets, rounds=7)
        assert server.ledger.round == 4
        server.run()
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert "checkpoint-1.safetensors is left out" in caplog.text
    for path in (tmp_path / "server").glob("checkpoint-*"):
        path.write_bytes(b"no")
    with (
        ServerDirectory(tmp_path / "server") as folder,
        pytest.raises(FedpbcError, match="no whole"),
    ):
        make_server(task, "fedpbc", folder, streets, rounds=7)


def test_bad_answers_are_refused_by_name_and_the_others_train_on(tmp_path, caplog):
    task = small_task()

    class Bad(Streets):
        def answer(self, client, parcel):
            found = super().answer(client, parcel)
            if client != 1 or parcel.kind == "hello":
                return found
            vector = found.vectors["end"]
            spoilt = bytes([0, 0, 192, 127]) + vector.data[4:]
            return Payload(found.header, {"end": type(vector)(vector.dtype, spoilt)})

    streets = Bad(make_trainers(task, tmp_path), lambda i, t: "ok")
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, streets, rounds=2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 2], [0, 2]]
        assert [line["refused"] for line in folder.lines] == [[1], [1]]
        assert_same(server, simulated(task, "fedpbc", folder.lines))
    assert caplog.messages == ["node 101 (client 1) is refused: its model is not finite"] * 2


def test_a_node_that_claims_anothers_number_is_refused(tmp_path, caplog):
    task = small_task()
    trainers = make_trainers(task, tmp_path)
    trainers[2].client = 0
    streets = Streets(trainers, lambda i, t: "ok")
    with caplog.at_level(logging.WARNING), ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedavg", folder, streets, rounds=1)
        object.__setattr__(server.fleet, "wait_for", 2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 1]]
    assert "node 102 is refused: it says that it is client 0, which is node 100" in caplog.text


def test_models_load_in_plain_pytorch(tmp_path):
    task = small_task()
    streets = Streets(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, streets, rounds=2)
        server.run()
        models = server.ledger.view_models()
    for view, model in models.items():
        parameters = load_file(tmp_path / f"server/models/{view}.safetensors")
        task.module.load_state_dict(parameters)
        flat = torch.cat([p.detach().reshape(-1) for p in task.module.parameters()])
        assert torch.equal(flat, model)


def test_a_folder_is_one_servers_and_one_jobs(tmp_path):
    task = small_task()
    streets = Streets(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        make_server(task, "fedpbc", folder, streets, rounds=1).run()
        with pytest.raises(FedpbcError, match="in use"), ServerDirectory(tmp_path / "server"):
            pass
    with (
        ServerDirectory(tmp_path / "server") as folder,
        pytest.raises(InputError, match="algorithm is fedavg"),
    ):
        make_server(task, "fedavg", folder, streets, rounds=1)


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        (["rounds.jsonl"], "but rounds.jsonl of a job that ran there: .* delete that, too"),
        (["finished.json"], "but finished.json of a job that ran there"),
        (["rounds.jsonl", "finished.json"], "but rounds.jsonl and finished.json of .* those, too"),
    ],
    ids=str,
)
def test_what_is_left_of_a_job_is_not_taken_for_a_new_ones(tmp_path, kept, named):
    folder = tmp_path / "server"
    serve_fedau(tmp_path, rounds=2)
    for path in folder.iterdir():
        if path.name not in kept and path.is_file():
            path.unlink()
    before = {name: (folder / name).read_bytes() for name in kept}
    with pytest.raises(FedpbcError, match=named):
        serve_fedau(tmp_path, rounds=2)
    assert {name: (folder / name).read_bytes() for name in kept} == before
    assert not list(folder.glob("checkpoint-*"))
    # The launcher starts nothing then.
    assert "take a new folder" in refused(fedpbc("fleet", "server", folder))
    for name in kept:
        (folder / name).unlink()
    serve_fedau(tmp_path, rounds=2)


def serve_fedau(path, *, rounds, global_lr=1.0, **options):
    """Run a job to its end."""
    task = small_task()
    streets = Streets(make_trainers(task, path / "devices"), lambda i, t: "ok")
    algorithm = {"name": "fedau", **options}
    with ServerDirectory(path / "server") as folder:
        make_server(task, algorithm, folder, streets, rounds, global_lr).run()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cutoff": 7}, r"algorithm\.cutoff is 7, but .* begun with: 50$"),
        ({"global_lr": 2.0}, r"train\.global_learning_rate is 2\.0, but .* begun with: 1\.0$"),
    ],
    ids=["option", "rate"],
)
def test_a_job_goes_on_with_the_rule_it_was_begun_with(tmp_path, changed, message):
    serve_fedau(tmp_path, rounds=1)
    with pytest.raises(InputError, match=message):
        serve_fedau(tmp_path, rounds=2, **changed)
    # More rounds are no other rule, and what is said need not have been said before.
    serve_fedau(tmp_path, rounds=2, cutoff=50)
    for path in (tmp_path / "server").glob("checkpoint-*"):
        older = load_state(path)
        del older["options"]
        save_state(path, older)
    with pytest.raises(InputError, match=message):
        serve_fedau(tmp_path, rounds=3, **changed)
    serve_fedau(tmp_path, rounds=3)


def test_a_node_that_does_not_say_who_it_is_is_asked_again(tmp_path):
    task = small_task()

    class Shy(Streets):
        hellos = 0

        def answer(self, client, parcel):
            if parcel.kind == "hello" and client == 2:
                self.hellos += 1
                if self.hellos < 3:
                    return Payload({"kind": "refusal", "reason": "no trainer answers"})
            return super().answer(client, parcel)

    streets = Shy(make_trainers(task, tmp_path), lambda i, t: "ok")
    with ServerDirectory(tmp_path / "server") as folder:
        server = make_server(task, "fedpbc", folder, streets, rounds=2)
        server.run()
        assert [line["active"] for line in folder.lines] == [[0, 1, 2]] * 2
    assert streets.hellos == 3
    assert streets.clock == pytest.approx(22, abs=1.5)
