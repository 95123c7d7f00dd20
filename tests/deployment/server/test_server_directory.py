from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load

from fedpbc.deployment.server.finished_job import damaged_results, rounds_finished
from fedpbc.deployment.server.server_directory import ServerDirectory, checkpoints_of
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments.overrides import configuration_values
from fedpbc.links import Setting, Timetable
from fedpbc.links.link_log import link_intervals
from fedpbc.links.trace import fleet_log_settings, recorded_rounds
from fedpbc.storage.tensors import load_state, save_state
from tests.commandline import content, fedpbc, ran, refused
from tests.deployment.fake_network import FakeNetwork, make_server, make_trainers, small_task


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
    assert recorded_rounds(str(path), seconds) == rounds
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


# Damage is found and said


@pytest.fixture
def job(tmp_path):
    """The folder of a job of three rounds that is done, and a function that resumes it."""
    task = small_task()

    def run(rounds=3):
        network = FakeNetwork(make_trainers(task, tmp_path), lambda i, t: "ok")
        with ServerDirectory(tmp_path / "server") as folder:
            make_server(task, "fedpbc", folder, network, rounds=rounds).run()

    run()
    return tmp_path / "server", run


def cut(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-1])


def doubled(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([lines[0], *lines])


log_damages = pytest.mark.parametrize(
    ("change", "line"),
    [
        (cut, "lacks rounds 2 to 2"),
        (lambda text: b"", "lacks rounds 0 to 2"),
        (doubled, "is damaged in line 2: it should be that of round 1"),
        (lambda text: text.replace(b'"round": 1', b'"round": 7'), "is damaged in line 2"),
        (lambda text: text.replace(b"[0, 1, 2]", b"[0, 2]", 1), "was changed"),
        (lambda text: text.replace(b"[0, 1, 2]", b'["0"]', 1), "it lacks a list of clients"),
        (lambda text: b"\xff" + text, "is damaged in line 1"),
        (lambda text: b"[" * 9000 + b"\n" + text, "it nests too deeply"),
        (lambda text: text.replace(b'"at": ', b'"at": 1e999, "b": ', 1), "not a finite number"),
        (lambda text: text.replace(b'"at": ', b'"at": 1' + b"0" * 400 + b', "b":'), "a time"),
    ],
)


@log_damages
def test_a_damaged_log_is_moved_aside_and_restored(job, change, line, caplog):
    """The checkpoint knows who got through in every round."""
    folder, run = job
    log = folder / "rounds.jsonl"
    before = log.read_bytes()
    log.write_bytes(damaged := change(before))
    run(rounds=4)
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    assert [each["round"] for each in lines] == [0, 1, 2, 3]
    for text, restored in zip(before.splitlines(), lines, strict=False):
        original = json.loads(text)
        del original["checksums"], original["known"]
        assert restored == {**original, "checksums": {}, "restored": True}
    assert (folder / "rounds.jsonl.damaged").read_bytes() == damaged
    assert any(line in message for message in caplog.messages)
    assert "rounds.jsonl is damaged, and now rounds.jsonl.damaged" in caplog.text
    # The restored log is as good as any.
    run(rounds=5)
    assert not (folder / "rounds.jsonl.damaged-2").exists()


@log_damages
def test_without_a_history_a_damaged_log_is_not_resumed(job, change, line):
    """Checkpoints of earlier versions do not know the rounds."""
    folder, run = job
    for path in checkpoints_of(folder):
        state = load_state(path)
        del state["history"]
        save_state(path, state)
    log = folder / "rounds.jsonl"
    before = log.read_bytes()
    log.write_bytes(change(before))
    damaged = content(folder)
    with pytest.raises(InputError) as raised:
        run(rounds=4)
    assert str(raised.value).startswith(f"{log} ")
    assert line in str(raised.value)
    assert "restore it from a copy, or take a new folder" in str(raised.value)
    assert content(folder) == damaged
    log.write_bytes(before)
    run(rounds=4)
    assert len(log.read_bytes().splitlines()) == 4


@pytest.mark.parametrize("damage", ["deleted", "emptied", "changed"])
def test_lost_reports_cost_only_their_views(job, damage, caplog):
    folder, run = job
    reports, models = folder / "reports.bin", folder / "models"
    before = {path.name for path in models.iterdir()}
    assert {"reported.safetensors", "corrected.safetensors"} <= before
    if damage == "deleted":
        reports.unlink()
    else:
        content = reports.read_bytes()
        reports.write_bytes(b"" if damage == "emptied" else bytes(len(content)))
    run(rounds=5)
    assert rounds_finished(folder) == 5
    assert damaged_results(folder) == []
    assert {path.name for path in models.glob("*.safetensors")} == {
        "server.safetensors",
        "averaged.safetensors",
    }
    assert "the job goes on without its views (reported and corrected)" in caplog.text
    assert (folder / "reports.bin.damaged").exists() == (damage != "deleted")
    # They stay lost, whatever is resumed later.
    run(rounds=6)
    assert not (models / "reported.safetensors").exists()


def test_a_round_that_was_logged_but_not_saved_is_repeated(job):
    folder, run = job
    log = folder / "rounds.jsonl"
    log.write_bytes(log.read_bytes() + b'{"round": 3, "act')
    run(rounds=5)
    assert [json.loads(line)["round"] for line in log.read_text().splitlines()] == [0, 1, 2, 3, 4]


def test_results_that_were_changed_are_found_and_written_again(job):
    folder, run = job
    assert damaged_results(folder) == []
    before, model = content(folder), folder / "models" / "server.safetensors"
    tensors, flipped = load(model.read_bytes()), bytearray(model.read_bytes())
    flipped[-1] ^= 1
    model.write_bytes(flipped)
    (folder / "links.csv").unlink()
    assert damaged_results(folder) == ["links.csv", "models/server.safetensors"]
    run()
    assert damaged_results(folder) == []
    after = content(folder)
    # The header of a tensor file has no fixed order.
    rewritten = {"finished.json", "models/server.safetensors"}
    assert {name for name in before if before[name] != after[name]} <= rewritten
    again = load(model.read_bytes())
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("text", ['{"files": {"../x": ""}}', '{"files": 3}', "[]", "\x00", ""])
def test_a_damaged_mark_of_the_end(job, text):
    folder, run = job
    (folder / "finished.json").write_text(text)
    assert damaged_results(folder) in ([], ["finished.json"])
    assert rounds_finished(folder) == 0
    run()
    assert rounds_finished(folder) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("nodes"),
        lambda state: state.pop("job"),
        lambda state: state.update(nodes={"a": "b"}),
        lambda state: state.update(seconds="x"),
        lambda state: state.update(log=3),
        lambda state: state.update(ledger=[]),
        lambda state: state["ledger"].pop("round"),
        lambda state: state["ledger"].update(reported=7),
    ],
)
def test_a_checkpoint_that_no_server_wrote_is_ignored(job, change, caplog):
    folder, run = job
    for path in checkpoints_of(folder):
        state = load_state(path)
        change(state)
        save_state(path, state)
    with pytest.raises(FedpbcError, match=r"all checkpoints in .* are damaged: restore one"):
        run(rounds=4)
    assert any(message.startswith("ignored checkpoint-") for message in caplog.messages)


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "models", ".lock", "reports.bin", "heard.json", "server.log"]
)
def test_links_out_of_the_folder_are_not_followed(job, tmp_path, name):
    folder, run = job
    outside = tmp_path / "outside"
    if name == "models":
        outside.mkdir()
    else:
        outside.write_text("precious")
    path = folder / name
    if path.is_dir():
        path.rename(tmp_path / "elsewhere")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(outside)
    with pytest.raises(InputError, match="is a link, which is not followed: remove it"):
        run(rounds=4)
    assert outside.is_dir() or outside.read_text() == "precious"
    assert not outside.is_dir() or not any(outside.iterdir())


@pytest.mark.parametrize("text", ["{}", "[]", '{"pinned": 3}', '{"pinned": {"x": 1}}', "\x00"])
def test_damaged_nodes_are_not_taken_for_a_fleet_without_keys(tmp_path, text):
    (tmp_path / "nodes.json").write_text('{"pinned": {"5": 1}}')
    with ServerDirectory(tmp_path) as folder:
        assert folder.pinned() == {5: 1}
        (tmp_path / "nodes.json").unlink()
        assert folder.pinned() == {5: 1}
        (tmp_path / "nodes.json").write_text(text)
        os.utime(tmp_path / "nodes.json", ns=(1, 1))
        with pytest.raises(FedpbcError, match="damaged: start the server again"):
            folder.pinned()
