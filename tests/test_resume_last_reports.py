"""With reports on disk: killed anywhere and resumed, it comes to the bits of a run in memory."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedpbc import Config, DivergedError, FedpbcError, LocalTraining, Quadratic, simulate, start_run
from fedpbc.experiments import checkpoints
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.sweep import GridCell, run_grid
from fedpbc.simulation import last_reports as reports
from fedpbc.storage import tensors
from tests.commandline import (
    DIGITS,
    assert_same_run,
    content,
    fedpbc,
    final,
    metrics,
    ran,
    refused,
    timeless,
)
from tests.killed import until_done
from tests.small_runs import same_bits

pytestmark = pytest.mark.slow

SHARED = (*DIGITS, "--rounds", 24, "--evaluate-every", 3, "--set", "checkpoint_every=2")
SHARED += ("--links", "markov", "--set", "links.p=0.4")
LOSSY = ("--downlink", "bernoulli", "--set", "downlink.p=0.6")
CASES = {
    "fedpbc": (),
    "fedpbc without mean": ("--views", "reported,server", "--engine", "serial"),
    "fedpbc lossy": LOSSY,
    "fedawe": ("--algorithm", "fedawe", *LOSSY),
}
PLACES = ("sync", "before rename", "after rename", "half a file", "half a line", "half a report")
DISK = ("--reported", "disk")
RESULTS = {
    "fedpbc-manifest.json",
    ".lock",
    "config.toml",
    "fleet.safetensors",
    "metrics.jsonl",
    "final.safetensors",
    "summary.json",
}


def started(case: str, *more: object) -> list[object]:
    return ["run", *SHARED, *CASES[case], *more]


def names(run: Path) -> set[str]:
    return {path.name for path in run.iterdir()}


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    """Every case as it comes out in memory."""
    place = tmp_path_factory.mktemp("memory")
    for case in CASES:
        ran(*started(case), "--out", place / case)
    return place


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_a_run_comes_to_the_same_bits_as_in_memory(tmp_path, in_memory, case):
    run = tmp_path / "run"
    ran(*started(case, *DISK), "--out", run)
    assert_same_run(in_memory / case, run)
    whole = (in_memory / case / "final.safetensors").read_bytes()
    assert (run / "final.safetensors").read_bytes() == whole
    # A finished run needs no reports, and its checkpoints are nothing without them.
    assert names(run) == RESULTS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_while_it_writes_gives_the_same_bits(fork_server, tmp_path, in_memory, case):
    dice, run = random.Random(case), tmp_path / "run"
    kills = [{"at": "half a report", "n": dice.randint(2, 15)}]
    kills += [{"at": place, "n": dice.randint(1, 4)} for place in dice.sample(PLACES, 3)]
    start = [*started(case, *DISK), "--out", run]
    assert until_done(fork_server, start, run, kills) == len(kills)
    assert_same_run(in_memory / case, run)


def test_a_run_killed_at_any_moment_gives_the_same_bits(fork_server, tmp_path, in_memory):
    began = time.monotonic()
    assert fork_server.run(*started("fedpbc", *DISK), "--out", tmp_path / "timed").code == 0
    takes = time.monotonic() - began
    dice, killed, run = random.Random(2), 0, tmp_path / "run"
    while killed < 5:
        kills = [{"after": dice.uniform(0.1, 0.6) * takes} for _ in range(4)]
        times = until_done(fork_server, [*started("fedpbc", *DISK), "--out", run], run, kills)
        assert_same_run(in_memory / "fedpbc", run)
        shutil.rmtree(run)
        killed += times
        # Where the machine is less busy by now, runs end before they are killed.
        takes /= 1 if times > 1 else 2


@pytest.mark.long
def test_a_finished_run_leaves_nothing_behind_however_often_it_was_killed(fork_server, tmp_path):
    run = tmp_path / "run"
    kills = [{"at": place, "n": n} for n in (1, 2) for place in PLACES]
    start = [*started("fedpbc", *DISK), "--out", run]
    assert until_done(fork_server, start, run, kills) == len(kills)
    assert names(run) == RESULTS


def test_a_run_killed_between_its_last_two_steps_is_tidied_up_when_it_is_resumed(tmp_path):
    run = interrupted(tmp_path / "run", after=20)
    kept = {path: path.read_bytes() for path in run.iterdir() if path.suffix != ".toml"}
    resume_run(run)
    assert names(run) == RESULTS
    for path, data in kept.items():
        if path.name.startswith("checkpoint-") or path.name == "reports.bin":
            path.write_bytes(data)
    assert "finished" in ran("resume", run).out
    assert names(run) == RESULTS


# Interrupted in this process


class Stop(Exception):
    """Stands for whatever interrupts a run."""


GIVEN = {
    "data": "digits",
    "clients": 8,
    "rounds": 20,
    "evaluate_every": 3,
    "checkpoint_every": 2,
    "links": {"name": "bernoulli", "p": 0.4},
}


def interrupted(run: Path, after: int = 13, where: str = "disk") -> Path:
    """A run that stopped after so many rounds, with checkpoints at 10 and 12."""

    def stop(done: int, _: object) -> None:
        if done == after:
            raise Stop

    with pytest.raises(Stop):
        start_run(
            Config.from_dict({**GIVEN, "reported": where}), run, watcher=Watcher(on_round=stop)
        )
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that the interrupted ones must come to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    start_run(Config.from_dict(GIVEN), run)
    return run


NEWEST, OLDER = "checkpoint-0000012.safetensors", "checkpoint-0000010.safetensors"
MODEL = 4 * (64 * 64 + 64 + 64 * 10 + 10)


def test_checkpoints_hold_no_reports(tmp_path):
    views = {"views": ["server", "reported"], "algorithm": "fedawe"}
    sizes = {}
    for where in ("memory", "disk"):

        def stop(done: int, _: object) -> None:
            if done == 19:
                raise Stop

        config = Config.from_dict({**GIVEN, **views, "reported": where})
        with pytest.raises(Stop):
            start_run(config, tmp_path / where, watcher=Watcher(on_round=stop))
        sizes[where] = (tmp_path / where / "checkpoint-0000018.safetensors").stat().st_size
    assert sizes["memory"] - sizes["disk"] > 7 * MODEL


def test_the_file_does_not_grow_with_the_rounds(tmp_path):
    run, sizes = tmp_path / "run", []

    def look(done: int, _: object) -> None:
        sizes.append((run / "reports.bin").stat().st_size)

    config = {**GIVEN, "rounds": 80, "checkpoint_every": 1, "links": "always"}
    config |= {"views": ["server", "reported"], "reported": "disk"}
    start_run(Config.from_dict(config), run, watcher=Watcher(on_round=look))
    # With everyone heard in every round: two checkpoints with 8 reports each, of which the newest
    # are current, and the 8 of the next round.
    assert max(sizes) == 3 * 8 * MODEL


def test_reports_are_on_disk_before_a_checkpoint_refers_to_them(tmp_path, monkeypatch):
    unsynced, saved = [], 0
    write, sync, save = reports.SlotFile.write, reports.SlotFile.sync, tensors.save_state

    def save_state(path, state):
        nonlocal saved
        saved += len(state["simulation"]["server"]["reported"]["slots"]) > 0
        assert unsynced == []
        save(path, state)

    monkeypatch.setattr(reports.SlotFile, "write", lambda *a: (unsynced.append(a[1]), write(*a))[1])
    monkeypatch.setattr(reports.SlotFile, "sync", lambda self: (sync(self), unsynced.clear())[0])
    monkeypatch.setattr(checkpoints, "save_state", save_state)
    start_run(Config.from_dict({**GIVEN, "reported": "disk"}), tmp_path / "run")
    assert saved >= 8


def slots(run: Path, checkpoint: str) -> dict[int, int]:
    state = tensors.peek_state(run / checkpoint)["simulation"]["server"]["reported"]
    return dict(zip(state["clients"], state["slots"], strict=True))


def damage(run: Path, slot: int) -> None:
    data = bytearray((run / "reports.bin").read_bytes())
    data[slot * MODEL + 77] ^= 0x10
    (run / "reports.bin").write_bytes(data)


def own_slots(run: Path, checkpoint: str, other: str) -> list[int]:
    return sorted(set(slots(run, checkpoint).values()) - set(slots(run, other).values()))


def test_damaged_reports_of_the_newest_checkpoint_give_way_to_the_older_one(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    slot = own_slots(run, NEWEST, OLDER)[0]
    [client] = [c for c, s in slots(run, NEWEST).items() if s == slot]
    damage(run, slot)
    ended = fedpbc("resume", run)
    assert ended.code == 0
    [line] = ended.err.splitlines()
    assert line.endswith(
        f"{run / NEWEST} is unusable: {run / 'reports.bin'} is damaged: client {client}'s report "
        "is not what was written; an older one is used"
    )
    assert_same_run(whole, run)


def test_a_run_all_of_whose_reports_are_damaged_begins_anew(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    shared = set(slots(run, NEWEST).values()) & set(slots(run, OLDER).values())
    damage(run, min(shared))
    ended = fedpbc("resume", run)
    assert ended.code == 0
    assert len(ended.err.splitlines()) == 2
    assert all("starting again from round 0" in line for line in ended.err.splitlines())
    assert_same_run(whole, run)


def test_a_run_that_began_anew_is_kept_by_checkpoints_again(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    os.truncate(run / "reports.bin", 3)

    def stop(done: int, _: object) -> None:
        if done == 7:
            raise Stop

    with pytest.raises(Stop):
        resume_run(run, watcher=Watcher(on_round=stop))
    found = sorted(path.name for path in run.glob("checkpoint-*"))
    assert found == ["checkpoint-0000004.safetensors", "checkpoint-0000006.safetensors"]
    ran("resume", run)
    assert_same_run(whole, run)


def test_a_damaged_newest_checkpoint_gives_way_to_the_older_one_and_its_reports(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    os.truncate(run / NEWEST, 1000)
    ended = fedpbc("resume", run)
    assert "an older one is used" in ended.err
    assert_same_run(whole, run)


def test_a_run_without_its_reports_is_refused_and_left_as_it_is(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    (run / "reports.bin").rename(tmp_path / "elsewhere")
    before = content(run)
    line = refused(fedpbc("resume", run))
    assert line == f"{run / 'reports.bin'} is missing: put it back, or start the run again"
    assert content(run) == before
    (tmp_path / "elsewhere").rename(run / "reports.bin")
    ran("resume", run)
    assert_same_run(whole, run)


@pytest.mark.parametrize(("old", "new"), [("disk", "memory"), ("memory", "disk")])
def test_where_reports_are_kept_may_change(tmp_path, whole, old, new):
    run = interrupted(tmp_path / "run", where=old)
    config = run / "config.toml"
    text = config.read_text()
    assert text.count(f'reported = "{old}"') == 1

    def stop(done: int, _: object) -> None:
        if done == 17:
            raise Stop

    config.write_text(text.replace(f'reported = "{old}"', f'reported = "{new}"'))
    with pytest.raises(Stop):
        resume_run(run, watcher=Watcher(on_round=stop))
    if new == "disk":
        assert (run / "reports.bin").stat().st_size >= 8 * MODEL
    # And back: with the newest checkpoint, and with one of the first kind that is still there.
    config.write_text(text)
    again = tmp_path / "again"
    shutil.copytree(run, again)
    os.truncate(again / "checkpoint-0000016.safetensors", 10)
    ran("resume", run)
    assert fedpbc("resume", again).code == 0
    assert_same_run(whole, run)
    assert_same_run(whole, again)
    assert not (run / "reports.bin").exists()


def test_overwriting_leaves_nothing_of_the_old(tmp_path):
    run = interrupted(tmp_path / "run")
    ran("run", *DIGITS, "--rounds", 2, "--algorithm", "fedavg", "--out", run, "--overwrite")
    assert not (run / "reports.bin").exists()


def test_a_grid_keeps_no_reports_of_finished_runs(tmp_path):
    cells = [
        GridCell(tmp_path / name, {**GIVEN, "rounds": 6, "algorithm": name, "reported": "disk"})
        for name in ("fedpbc", "fedavg")
    ]
    assert run_grid(cells, 1, lambda _: None) == [None, None]
    for cell in cells:
        assert names(cell.path) == RESULTS


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    tmp_path, whole, monkeypatch
):
    write, count = reports.SlotFile.write, 0

    def full(self, slot, content):
        nonlocal count
        count += 1
        if count == 30:
            monkeypatch.setattr(self, "_path", Path("/dev/full"))
            self.close()
        write(self, slot, content)

    monkeypatch.setattr(reports.SlotFile, "write", full)
    run = tmp_path / "run"
    with pytest.raises(FedpbcError, match=r"reports.bin cannot be written: No space left on devi"):
        start_run(Config.from_dict({**GIVEN, "reported": "disk"}), run)
    assert 0 < len(metrics(run)) < 7
    ran("resume", run)
    assert_same_run(whole, run)


# From Python


def test_a_run_from_python_goes_on_from_its_file(tmp_path, monkeypatch):
    import fedpbc.experiments.execution

    monkeypatch.setattr(fedpbc.experiments.execution, "CHECKPOINT_SECONDS", 0.0)
    task = Quadratic([[0.0, 1.0], [10.0, 2.0], [20.0, 5.0]])
    options = {"links": {"name": "bernoulli", "p": 0.5}, "rounds": 40}

    def stop(done: int, _: object) -> None:
        if done == 25:
            raise Stop

    wanted = simulate(task, **options, out=tmp_path / "whole")
    run = tmp_path / "run"
    with pytest.raises(Stop):
        simulate(task, **options, out=run, reported="disk", on_round=stop)
    assert (run / "reports.bin").is_file()
    result = simulate(task, **options, out=run, reported="disk")
    assert_same_run(tmp_path / "whole", run)
    assert all(result.models[view].equal(wanted.models[view]) for view in wanted.models)
    assert not RunDirectory(run).last_reports_path.exists()
    assert timeless(run)[-1]["round"] == 40
    assert final(run) == final(tmp_path / "whole")


def test_a_run_that_diverges_keeps_the_reports_of_the_round_before(tmp_path):
    # Each round multiplies what is left by −1e20: too large for a double in round 15.
    training = LocalTraining(local_steps=1, learning_rate=1e20, decay=False)
    task, up = Quadratic([[1.0], [3.0]], training=training), np.ones((40, 2))
    lines, kept = [], []
    for where in ("memory", "disk"):
        run = tmp_path / where
        with pytest.raises(DivergedError) as error:
            simulate(task, links=up, evaluate_every=40, out=run, reported=where)
        lines.append(str(error.value).replace(str(run), "run"))
        newest = RunDirectory(run).checkpoints.paths()[0]
        state = tensors.load_state(newest)["simulation"]["server"]
        with closing(reports.choose_last_reports(where, run / "reports.bin")) as found:
            found.restore(state["reported"])
            kept.append({client: report.clone() for client, report in found.items()})
        assert state["round"] == error.value.round == 15
    assert lines[0] == lines[1]
    assert "checkpoint-0000015" in lines[0]
    assert same_bits(*kept)
    # Of two clients the reports, and what they differ from the moving average.
    assert len(kept[1]) == 4
