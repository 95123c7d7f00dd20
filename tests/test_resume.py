"""N rounds = k rounds, kill, resume, N−k rounds: to the bit, wherever the kill falls."""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from fedpbc import Config, LocalTraining, Quadratic, simulate, start_run
from fedpbc.experiments.execution import Watcher
from fedpbc.experiments.integrity import verify_run
from tests.commandline import (
    COMMAND,
    DIGITS,
    assert_same_run,
    content,
    fedpbc,
    metrics,
    ran,
    refused,
    timeless,
    write_check,
)
from tests.killed import until_done
from tests.processes import child

pytestmark = pytest.mark.slow

ROUNDS = 24
OFTEN = (*DIGITS, "--rounds", ROUNDS, "--evaluate-every", 3, "--set", "checkpoint_every=2")
LINKS = ("--links", "markov", "--set", "links.p=0.4")
LOSSY = ("--downlink", "bernoulli", "--set", "downlink.p=0.6")
OUTAGES = ("--links", "group", *("--set", "links.away=0.1"), *("--set", "links.late=0.5"))
CUT = ("--downlink", "interleaved_sine", "--set", "downlink.p=0.2")
MOMENTUM = ("--set", "train.momentum=0.9")
CASES = {
    "fedpbc stacked": ("--algorithm", "fedpbc", "--engine", "stacked"),
    "fedpbc serial": ("--algorithm", "fedpbc", "--engine", "serial", *LOSSY, *MOMENTUM),
    "fedpbc scaled": ("--algorithm", "fedpbc", *LOSSY, "--global-learning-rate", 1.5),
    "fedawe stacked": ("--algorithm", "fedawe", *LOSSY),
    "fedawe serial": ("--algorithm", "fedawe", "--engine", "serial"),
    "mifa": ("--algorithm", "mifa", *LOSSY, "--engine", "serial"),
    "fedau": ("--algorithm", "fedau", "--set", "algorithm.cutoff=5", *MOMENTUM),
    "scaffold": ("--algorithm", "scaffold", *LOSSY),
    "scaffold serial": ("--algorithm", "scaffold", "--engine", "serial"),
    "mifa client": ("--algorithm", "mifa", "--set", "algorithm.memory=client", *LOSSY),
    "focus": ("--algorithm", "focus", "--global-learning-rate", 0.2),
    "amplified": ("--algorithm", "amplified_scaffold", "--set", "algorithm.window=4", *LOSSY),
    "fedvarp": ("--algorithm", "fedvarp", "--set", "train.optimizer=adam"),
    "f3ast": ("--algorithm", "f3ast", "--set", "algorithm.cap=2", *LOSSY),
    "fedavg_known": ("--algorithm", "fedavg_known", "--links", "markov_varying"),
    "outages": ("--algorithm", "fedavg_known", *OUTAGES, *CUT),
}
PLACES = ("sync", "before rename", "after rename", "half a file", "half a line")


def started(case: str) -> list[object]:
    return ["run", *OFTEN, *LINKS, *CASES[case]]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_while_it_writes_gives_the_same_bits(fork_server, tmp_path, case):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert fork_server.run(*started(case), "--out", whole).code == 0
    dice = random.Random(case)
    kills = [{"at": place, "n": dice.randint(1, 4)} for place in dice.sample(PLACES, 3)]
    assert until_done(fork_server, [*started(case), "--out", broken], broken, kills) == len(kills)
    assert_same_run(whole, broken)


def test_a_run_killed_at_any_moment_gives_the_same_bits(fork_server, tmp_path):
    start = ["run", *OFTEN, *LINKS, "--set", "checkpoint_every=1", *CASES["fedpbc scaled"]]
    whole = tmp_path / "whole"
    assert fork_server.run(*start, "--out", whole).code == 0
    began = time.monotonic()
    assert fork_server.run(*start, "--out", whole, "--overwrite").code == 0
    takes = time.monotonic() - began
    dice, killed, broken = random.Random(1), 0, tmp_path / "broken"
    while killed < 8:
        kills = [{"after": dice.uniform(0.1, 0.5) * takes} for _ in range(5)]
        times = until_done(fork_server, [*start, "--out", broken], broken, kills)
        assert_same_run(whole, broken)
        shutil.rmtree(broken)
        killed += times
        # Where the machine is less busy by now, runs end before they are killed.
        takes /= 1 if times > 1 else 2


@pytest.mark.long
def test_a_process_of_its_own_killed_and_resumed_gives_the_same_bits(tmp_path):
    start = ["run", *OFTEN, *LINKS, *CASES["fedpbc stacked"], "--rounds", 75]
    start += ["--set", "checkpoint_every=1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ran(*start, "--out", whole)
    seen = broken / "metrics.jsonl"
    for begin, lines in ((start, 4), (["resume", broken], 12)):
        out = ["--out", broken] if begin is start else []
        command = [COMMAND, *map(str, [*begin, *out])]
        with child(command) as running:
            while not (seen.is_file() and seen.read_bytes().count(b"\n") >= lines):
                assert running.poll() is None
                time.sleep(0.002)
            running.send_signal(signal.SIGKILL)
            running.communicate()
        assert running.returncode == -signal.SIGKILL
        assert not (broken / "summary.json").exists()
    ran("resume", broken)
    assert_same_run(whole, broken)


def test_a_finished_run_leaves_nothing_behind_however_often_it_was_killed(fork_server, tmp_path):
    start, broken = [*started("mifa"), "--out", tmp_path / "run"], tmp_path / "run"
    kills = [{"at": place, "n": n} for n in (1, 3) for place in PLACES]
    assert until_done(fork_server, start, broken, kills) == len(kills)
    expected = {".lock", "config.toml", "metrics.jsonl", "final.safetensors", "summary.json"}
    expected |= {"fleet.safetensors", "fedpbc-manifest.json"}
    found = {p.name for p in broken.iterdir() if not p.name.startswith("checkpoint-")}
    assert found == expected


class Stop(Exception):
    """Stands for whatever interrupts a run."""


def interrupted(folder: Path, after: int = 13, **options: object) -> Path:
    """A run that stopped after so many rounds, with checkpoints at 10 and 12."""
    given = {
        "data": "digits",
        "clients": 8,
        "rounds": 20,
        "evaluate_every": 3,
        "checkpoint_every": 2,
        "links": {"name": "bernoulli", "p": 0.4},
        **options,
    }

    def stop(done: int, _: object) -> None:
        if done == after:
            raise Stop

    with pytest.raises(Stop):
        start_run(Config.from_dict(given), folder, watcher=Watcher(on_round=stop))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that the interrupted ones must come to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    config = {"data": "digits", "clients": 8, "rounds": 20, "evaluate_every": 3}
    config |= {"checkpoint_every": 2, "links": {"name": "bernoulli", "p": 0.4}}
    start_run(Config.from_dict(config), folder)
    return folder


def checkpoints(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("checkpoint-*"))


NEWEST, OLDER = "checkpoint-0000012.safetensors", "checkpoint-0000010.safetensors"


def test_the_last_two_checkpoints_are_kept(tmp_path, whole):
    assert checkpoints(interrupted(tmp_path / "run")) == [OLDER, NEWEST]
    assert len(checkpoints(whole)) == 2


def test_resuming_makes_again_what_came_after_the_checkpoint(tmp_path, whole):
    # Stopped after round 15, whose evaluation is written, but whose checkpoint is of round 14.
    run = interrupted(tmp_path / "run", after=15)
    assert [line["round"] for line in metrics(run)] == [3, 6, 9, 12, 15]
    ran("resume", run)
    assert [line["round"] for line in metrics(run)] == [3, 6, 9, 12, 15, 18, 20]
    assert_same_run(whole, run)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "flipped":
        data[-len(data) // 3] ^= 0x10
    elif how == "flipped header":
        data[data.index(b"local_steps") + 2] ^= 0x01
    else:
        data = bytearray()
    path.write_bytes(data)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["truncated", "flipped", "flipped header", "empty"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_older_one(tmp_path, whole, how):
    run = interrupted(tmp_path / "run")
    damage(run / NEWEST, how)
    ended = fedpbc("resume", run)
    assert ended.code == 0
    [line] = ended.err.splitlines()
    assert str(run / NEWEST) in line
    assert "damaged" in line
    assert "an older one is used" in line
    assert_same_run(whole, run)


def test_a_run_whose_checkpoints_are_all_damaged_starts_again(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    damage(run / NEWEST, "truncated")
    damage(run / OLDER, "flipped")
    ended = fedpbc("resume", run)
    assert ended.code == 0
    assert all("starting again from round 0" in line for line in ended.err.splitlines())
    assert NEWEST in ended.err
    assert OLDER in ended.err
    assert_same_run(whole, run)


def test_a_run_without_checkpoints_starts_again(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    for path in run.glob("checkpoint-*"):
        path.unlink()
    ran("resume", run)
    assert_same_run(whole, run)


def test_leftovers_and_a_torn_line_do_no_harm(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    (run / ".checkpoint-0000014.safetensors.999.tmp").write_bytes(b"half")
    (run / ".tmpAbC123").write_bytes(b"half")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 15, "active": 3, "vie')
    ran("resume", run)
    assert_same_run(whole, run)
    assert (run / "metrics.jsonl").read_text().endswith("}\n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["deleted", "cut", "doubled", "edited", "no end", "not UTF-8"])
def test_damaged_metrics_are_restored_from_the_checkpoint(tmp_path, whole, how):
    run = interrupted(tmp_path / "run")
    file = run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = {
        "cut": b"".join(lines[:-1])[:-50],
        "doubled": b"".join(lines + lines),
        "edited": b"".join(lines).replace(b'"uploads": ', b'"uploads": 1'),
        "no end": b"".join(lines).removesuffix(b"\n"),
        "not UTF-8": b"\xff" + b"".join(lines),
    }
    file.unlink()
    if how in damaged:
        file.write_bytes(damaged[how])
    ended = fedpbc("resume", run)
    assert ended.code == 0
    # What was doubled stands after what the checkpoint knows, as an evaluation after it would.
    if how != "doubled":
        assert "metrics.jsonl was damaged; it is restored from the checkpoint" in ended.err
    assert_same_run(whole, run)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "how", "checkpoints_left"),
    [
        ("metrics.jsonl", "flipped", True),
        ("metrics.jsonl", "deleted", True),
        ("final.safetensors", "flipped", True),
        ("final.safetensors", "flipped", False),
        ("final.safetensors", "deleted", True),
        ("summary.json", "flipped", False),
        ("summary.json", "empty", True),
        ("fleet.safetensors", "flipped", True),
    ],
)
def test_a_damaged_finished_run_is_made_again(tmp_path, whole, file, how, checkpoints_left):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    if not checkpoints_left:
        for checkpoint in run.glob("checkpoint-*"):
            checkpoint.unlink()
    content = bytearray((run / file).read_bytes())
    content[len(content) // 2] ^= 1
    (run / file).write_bytes(content if how == "flipped" else b"")
    if how == "deleted":
        (run / file).unlink()
    ended = fedpbc("resume", run)
    assert ended.code == 0
    # Without one of these two it is simply not finished.
    if how != "deleted" or file not in ("summary.json", "final.safetensors"):
        assert file in ended.err
    assert_same_run(whole, run)
    assert verify_run(run).damage == ()


def test_a_run_killed_between_its_models_and_its_summary_is_finished(tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    ran("resume", run)
    assert_same_run(whole, run)


def test_a_finished_run_is_left_as_it_is(tmp_path, whole):
    before = content(whole)
    ended = ran("resume", whole)
    assert content(whole) == before
    assert "finished" in ended.out


def test_a_run_goes_on_in_another_place(tmp_path, whole, monkeypatch):
    check = write_check(tmp_path / "given", rounds=20)
    options = {"rounds": 20, "links": {"name": "table", "file": str(check.parent / "tt.npy")}}
    shutil.copy(check.parent / "timetable.npy", check.parent / "tt.npy")
    quadratic = {"task": {"name": "quadratic", "targets": str(check.parent / "targets.npy")}}
    data = {"data": {}, "clients": None}
    run = interrupted(tmp_path / "run", **options, **quadratic, **data)
    straight = tmp_path / "straight"
    ran("run", run / "config.toml", "--out", straight)
    shutil.rmtree(check.parent)
    moved = tmp_path / "somewhere" / "else"
    shutil.copytree(run, moved)
    shutil.rmtree(run)
    monkeypatch.chdir(tmp_path / "somewhere")
    ran("resume", "else")
    assert_same_run(straight, moved)


def test_a_run_in_use_is_refused(tmp_path, whole):
    run = interrupted(tmp_path / "run")
    before = content(run)
    with (run / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        line = refused(fedpbc("resume", run))
        assert line == f"{run} is in use by another process"
        line = refused(fedpbc("run", *DIGITS, "--rounds", 2, "--out", run, "--overwrite"))
        assert line == f"{run} is in use by another process"
    assert content(run) == before
    ran("resume", run)
    assert_same_run(whole, run)


@pytest.mark.parametrize("command", ["resume", "verify"])
def test_a_damaged_configuration_is_said_to_be_damaged(tmp_path, command):
    ran("run", *DIGITS, "--rounds", 2, "--out", tmp_path / "run")
    (tmp_path / "run/config.toml").write_bytes(b"rounds = = 2\n")
    ended = fedpbc(command, tmp_path / "run")
    assert ended.code == 2
    assert "(its config.toml is damaged, or not one of a run)\n" in ended.out + ended.err


@pytest.mark.parametrize("kind", ["missing", "empty", "other files", "a file"])
def test_a_folder_that_holds_no_run_is_refused(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("text")
    elif kind != "missing":
        place.mkdir()
        if kind == "other files":
            (place / "notes.txt").write_text("mine")
    before = content(tmp_path)
    line = refused(fedpbc("resume", place))
    assert line.startswith(f"folder is '{place}', but should be one that holds a run")
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 0", "seed = 1"),
        ("clients = 8", "clients = 9"),
        ("learning_rate = 0.05", "learning_rate = 0.5"),
        ("p = 0.4", "p = 0.5"),
        ("alpha = 0.1", "alpha = 0.2"),
        ('name = "fedpbc"', 'name = "fedavg"'),
        ("evaluate_every = 3", "evaluate_every = 4"),
        ('name = "digits"', 'name = "fashion"'),
    ],
)
def test_a_run_whose_configuration_changed_is_refused(tmp_path, old, new):
    run = interrupted(tmp_path / "run")
    config = run / "config.toml"
    text = config.read_text()
    assert text.count(old) == 1
    config.write_text(text.replace(old, new))
    before = content(run)
    assert "another run" in refused(fedpbc("resume", run))
    assert content(run) == before


@pytest.mark.parametrize("file", ["task-targets.npy", "links-file.npy"])
def test_a_run_whose_files_changed_is_refused(tmp_path, file):
    check = write_check(tmp_path)
    given = {
        "data": {},
        "clients": None,
        "rounds": 60,
        "task": {"targets": str(check.parent / "targets.npy")},
        "links": {"name": "table", "file": str(check.parent / "timetable.npy")},
    }
    run = interrupted(tmp_path / "run", **given)
    place = run / "inputs" / file
    array = np.load(place)
    array[-1, 0] = 1 - array[-1, 0]
    np.save(place, array)
    before = content(run)
    line = refused(fedpbc("resume", run))
    assert f"{file} is damaged: it was changed since the run began" in line
    assert content(run) == before


def test_a_run_whose_configuration_is_damaged_is_refused(tmp_path):
    run = interrupted(tmp_path / "run")
    (run / "config.toml").write_text("rounds = = 3")
    before = content(run)
    assert "config.toml" in refused(fedpbc("resume", run))
    assert content(run) == before


def own_task(learning_rate: float = 0.1, shift: float = 0.0) -> Quadratic:
    targets = np.arange(12.0).reshape(6, 2) + shift
    return Quadratic(targets, training=LocalTraining(learning_rate=learning_rate, decay=False))


P_HALF = {"name": "bernoulli", "p": 0.5}


def test_a_run_from_python_goes_on_when_called_again(tmp_path, monkeypatch):
    import fedpbc.experiments.execution

    monkeypatch.setattr(fedpbc.experiments.execution, "CHECKPOINT_SECONDS", 0.0)

    def stop(done: int, _: object) -> None:
        if done == 25:
            raise Stop

    out = tmp_path / "run"
    whole = simulate(own_task(), "fedau", P_HALF, rounds=40, out=tmp_path / "whole")
    with pytest.raises(Stop):
        simulate(own_task(), "fedau", P_HALF, rounds=40, out=out, on_round=stop)
    assert len(checkpoints(out)) > 0
    rounds = []
    result = simulate(
        own_task(), "fedau", P_HALF, rounds=40, out=out, on_round=lambda t, _: rounds.append(t)
    )
    assert 1 < rounds[0] <= 26
    assert rounds[-1] == 40
    assert_same_run(tmp_path / "whole", out)
    assert {v: m.tolist() for v, m in result.models.items()} == {
        v: m.tolist() for v, m in whole.models.items()
    }
    assert [m.round for m in result.metrics] == [10, 20, 30, 40]


def test_the_command_says_how_a_run_from_python_goes_on(tmp_path):
    def stop(done: int, _: object) -> None:
        raise Stop

    out = tmp_path / "run"
    with pytest.raises(Stop):
        simulate(own_task(), "fedau", P_HALF, rounds=40, out=out, on_round=stop)
    before = content(out)
    line = refused(fedpbc("resume", out))
    assert "started from Python" in line
    assert f"simulate(…, out={str(out)!r})" in line
    assert content(out) == before


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (own_task(0.3), {"algorithm": "fedau", "rounds": 40}),
        (own_task(), {"algorithm": "mifa", "rounds": 40}),
        (own_task(), {"algorithm": {"name": "fedau", "cutoff": 3}, "rounds": 40}),
        (own_task(), {"algorithm": "fedau", "rounds": 40, "global_lr": 2.0}),
        (own_task(), {"algorithm": "fedau", "rounds": 40, "seed": 9}),
        (own_task(shift=1.0), {"algorithm": "fedau", "rounds": 40}),
    ],
    ids=["learning rate", "algorithm", "algorithm's options", "global rate", "seed", "data"],
)
def test_another_run_from_python_leaves_the_first_as_it_was(tmp_path, monkeypatch, task, options):
    import fedpbc.experiments.execution
    from fedpbc import FedpbcError

    monkeypatch.setattr(fedpbc.experiments.execution, "CHECKPOINT_SECONDS", 0.0)

    def stop(done: int, _: object) -> None:
        if done == 25:
            raise Stop

    out = tmp_path / "run"
    with pytest.raises(Stop):
        simulate(own_task(), "fedau", P_HALF, rounds=40, out=out, on_round=stop)
    before = content(out)
    with pytest.raises(FedpbcError, match="another run"):
        simulate(task, links=P_HALF, out=out, **options)
    assert content(out) == before


def test_a_run_from_python_does_not_take_over_one_of_the_command(tmp_path):
    from fedpbc import FedpbcError

    run = interrupted(tmp_path / "run")
    before = content(run)
    with pytest.raises(FedpbcError):
        simulate(own_task(), "fedau", P_HALF, rounds=40, out=run)
    assert content(run) == before


def test_a_run_from_python_that_is_finished_is_left_as_it_is(tmp_path):
    from fedpbc import InputError

    out = tmp_path / "run"
    simulate(own_task(), "fedau", P_HALF, rounds=10, out=out)
    before = content(out)
    with pytest.raises(InputError, match="finished run"):
        simulate(own_task(), "fedau", P_HALF, rounds=10, out=out)
    assert content(out) == before


@pytest.mark.parametrize("links", ["bernoulli", "trace"])
def test_the_links_of_a_resumed_run_are_those_it_began_with(tmp_path, links):
    trace = tmp_path / "trace.csv"
    lines = [f"{k % 3},{600 * k},{600 * k + 900}" for k in range(30)]
    trace.write_text("\n".join(["client,online_from_s,online_until_s", *lines]) + "\n")
    options = {"file": str(trace)} if links == "trace" else {"p": 0.3}
    run = interrupted(tmp_path / "run", links={"name": links, **options})
    ran("run", run / "config.toml", "--out", tmp_path / "straight")
    ran("resume", run)
    assert timeless(run) == timeless(tmp_path / "straight")
