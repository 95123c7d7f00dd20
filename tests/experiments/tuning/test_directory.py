from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedpbc.data import sources
from fedpbc.errors import FedpbcError, InputError
from fedpbc.experiments import build, plan_files
from fedpbc.experiments.integrity import verify_run
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.experiments.tuning import directory as tuning_directory
from fedpbc.experiments.tuning.directory import TuningDirectory, planned_steps
from fedpbc.experiments.tuning.plan import plan_tuning
from fedpbc.experiments.tuning.request import TuningRequest
from fedpbc.report.tuning import write_tuning
from fedpbc.tasks import Supervised

DIGITS = {"data": "digits", "clients": 8, "rounds": 18, "links": {"name": "bernoulli", "p": 0.5}}
REQUEST = TuningRequest(
    algorithms=["fedavg", "fedpbc"], candidates=5, space={"learning_rate": [0.05, 0.2, 0.4, 1e30]}
)


def search(path, request=REQUEST, values=DIGITS, jobs=1):
    plan, directory, told = plan_tuning(values, request), TuningDirectory(path), []
    with directory.opened(plan) as plan:
        result = directory.run(plan, jobs, lambda plan: told.append)
        write_tuning(directory, result)
    return result, told


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "whole"
    result, told = search(path)
    return path, result, told


def test_the_best_of_those_that_ran_to_the_end_is_chosen(whole):
    _, result, _ = whole
    for tuned in result.entries:
        assert [trial.rounds for trial in tuned.trials].count(18) == 2
        assert len(tuned.trials) == 5
        longest = [t.score.value for t in tuned.trials if t.rounds == 18 and t.score]
        assert tuned.best.score.value == max(longest)
        # The step size of 1e30 diverges.
        assert tuned.diverged >= 1
        assert tuned.best.settings["train.learning_rate"] < 1


def test_a_promoted_run_goes_on_and_is_not_run_again(whole):
    path, result, _ = whole
    rounds = result.rounds_run
    assert rounds == result.plan.cost()
    tried = [run.path for run in map(RunDirectory, path.glob("*/candidate-*/seed-0"))]
    assert len(tried) == 10
    # What an evaluation took is counted from the run's first round: it never went back.
    for run in tried:
        lines = RunDirectory(run).metrics()
        assert [line["round"] for line in lines] == sorted({line["round"] for line in lines})


def test_a_candidate_is_the_same_run_as_without_a_search(whole, tmp_path):
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.start import start_run
    from tests.commandline import assert_same_run

    path, result, _ = whole
    best = result.entries[0].best
    number = [trial is best for trial in result.entries[0].trials].index(True)
    trial = result.plan.trials("fedavg")[number]
    start_run(Config.from_dict(result.plan.config(trial, 0), lenient=True), tmp_path / "run")
    assert_same_run(tmp_path / "run", path / trial.folder / "seed-0")


def test_progress_is_told_of_every_step(whole):
    _, result, told = whole
    steps = planned_steps(result.plan)
    ended = {p.cell for p in told if p.done == steps[p.cell][1]}
    assert ended == set(range(len(steps)))
    assert sum(rounds for _, rounds, _ in steps) == result.plan.cost()


@pytest.mark.long
def test_it_is_deterministic_and_independent_of_how_many_run_side_by_side(whole, tmp_path):
    path, result, _ = whole
    again, _ = search(tmp_path / "again", jobs=2)
    assert again.as_dict() == result.as_dict()
    for name in ("tuned.toml", "tuning.json", "tuned-fedavg.toml", "table.md"):
        assert (tmp_path / "again" / name).read_bytes() == (path / name).read_bytes()


def test_nothing_of_the_test_data_is_used(whole, tmp_path, monkeypatch):
    """The test pictures are noise, and have one label."""
    path, _, _ = whole
    loaded = sources.load("digits", None)
    noise = np.random.default_rng(0).integers(0, 255, loaded.test.inputs.shape)
    test = replace(
        loaded.test,
        inputs=noise.astype(loaded.test.inputs.dtype)[:3],
        labels=np.full_like(loaded.test.labels, 9)[:3],
    )
    monkeypatch.setattr(build, "load_cached", lambda *_: replace(loaded, test=test))
    search(tmp_path / "noise")
    assert (tmp_path / "noise/tuning.json").read_bytes() == (path / "tuning.json").read_bytes()
    assert (tmp_path / "noise/tuned.toml").read_bytes() == (path / "tuned.toml").read_bytes()


def test_the_samples_that_score_are_not_trained_on():
    from fedpbc.experiments.build import build_task
    from fedpbc.experiments.configuration import Config

    plan = plan_tuning(DIGITS, REQUEST)
    task = build_task(Config.from_dict(plan.config(plan.trials("fedavg")[0], 0), lenient=True))
    whole_task = build_task(Config.from_dict({**DIGITS, "seed": 0}))
    assert isinstance(task, Supervised)
    assert isinstance(whole_task, Supervised)
    kept = np.concatenate(task.parts)
    held_out = np.setdiff1d(np.concatenate(whole_task.parts), kept)
    assert len(held_out) == len(task.data.test_labels) == 8 * int(0.2 * len(whole_task.parts[0]))
    assert (whole_task.data.labels[held_out] == task.data.test_labels).all()


def test_an_interrupted_search_comes_to_the_same_choice(whole, tmp_path):
    path, _, _ = whole
    plan, directory = plan_tuning(DIGITS, REQUEST), TuningDirectory(tmp_path / "cut")

    class StopError(Exception):
        pass

    for after in (1, 3, 8, 14):
        heard = 0

        def stop(progress, after=after):
            nonlocal heard
            heard += 1
            if heard > after:
                raise StopError

        with directory.opened(plan) as opened, pytest.raises(StopError):
            directory.run(opened, 1, lambda plan, stop=stop: stop)
    search(tmp_path / "cut")
    assert (tmp_path / "cut/tuning.json").read_bytes() == (path / "tuning.json").read_bytes()


def test_a_choice_is_not_sealed_without_the_evaluations_it_was_made_from(whole, tmp_path):
    path, result, _ = whole
    folder = tmp_path / "copy"
    shutil.copytree(path, folder)
    scores = result.as_dict()["algorithms"]["fedavg"]["candidates"]
    runs = [folder / f"fedavg/candidate-{k}/seed-0" for k, c in enumerate(scores) if c["score"]]
    lost = next(run / "metrics.jsonl" for run in runs if not (run / "summary.json").exists())
    lost.unlink()
    with pytest.raises(FedpbcError, match=f"^{lost} is missing; resume the search"):
        TuningDirectory(folder).seal(result)


def test_a_damaged_candidate_is_made_again(whole, tmp_path):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    for name in ("tuning.json", "tuned.toml"):
        (copy / name).unlink()
    runs = [RunDirectory(f) for f in copy.glob("fedavg/candidate-*/seed-0")]
    finished = next(run for run in runs if run.finished)
    text = finished.metrics_path.read_text()
    finished.metrics_path.write_text(text.replace('"test_accuracy": 0.', '"test_accuracy": 0.9', 1))
    search(copy)
    assert (copy / "tuning.json").read_bytes() == (path / "tuning.json").read_bytes()


def test_a_budget_in_minutes_is_settled_once(tmp_path):
    request = replace(REQUEST, candidates=None, minutes=0.2)
    plan, directory = plan_tuning(DIGITS, request), TuningDirectory(tmp_path / "run")
    with directory.opened(plan) as opened:
        result = directory.run(opened, 1, lambda plan: lambda progress: None)
        write_tuning(directory, result)
    count = result.plan.count
    assert count >= 1
    # The same request goes on with the same number, whatever the speed is now.
    with directory.opened(plan_tuning(DIGITS, request)) as opened:
        assert opened.count == count
    assert directory.load_plan().count == count


@pytest.mark.parametrize("tried", [[1e30, 0.05], [1e30]])
def test_a_default_that_diverges_at_once_does_not_count_as_free(tmp_path, monkeypatch, tried):
    """Its next candidate is timed; where all diverge, it counts as slow as the slowest."""
    values = {**DIGITS, "train": {"learning_rate": 1e30}}
    spaces = {"fedavg.learning_rate": tried, "fedpbc.learning_rate": [0.05]}
    spaces["global_learning_rate"] = [1.0]
    request = replace(REQUEST, space=spaces, candidates=None, minutes=1.0)
    heard = {}

    def settle(plan, speeds, *_):
        heard.update(speeds)
        return replace(plan, count=1, most_rungs=1)

    monkeypatch.setattr(tuning_directory, "with_affordable_count", settle)
    directory = TuningDirectory(tmp_path / "run")
    with directory.opened(plan_tuning(values, request)) as plan:
        directory.run(plan, 1, lambda plan: lambda progress: None)
    assert RunDirectory(tmp_path / "run/fedavg/candidate-0/seed-0").metrics() == []

    def measured(folder):
        last = RunDirectory(tmp_path / "run" / folder / "seed-0").metrics()[-1]
        return last["seconds"] / last["round"]

    timed = "fedavg/candidate-1" if len(tried) > 1 else "fedpbc/candidate-0"
    assert heard == {
        "fedavg": measured(timed),
        "fedpbc": measured("fedpbc/candidate-0"),
    }


def test_a_choice_made_at_an_earlier_rung_goes_on_in_the_same_way(tmp_path):
    request = replace(REQUEST, candidates=None, minutes=0.2)
    plan, directory = plan_tuning(DIGITS, request), TuningDirectory(tmp_path / "run")
    short = replace(plan, count=4, most_rungs=1)
    with directory.opened(plan):
        directory.write_plan(short)
    with directory.opened(plan_tuning(DIGITS, request)) as opened:
        assert (opened.count, opened.most_rungs) == (4, 1)
        result = directory.run(opened, 1, lambda plan: lambda progress: None)
        write_tuning(directory, result)
    first = plan.halving("fedavg", 4).rungs[0]
    assert {trial.rounds for entry in result.entries for trial in entry.trials} == {first}
    assert directory.finished
    assert directory.load_plan() == replace(short, shared=directory.load_plan().shared)


def test_other_folders_are_left_alone(whole, tmp_path):
    path, _, _ = whole
    plan = plan_tuning(DIGITS, replace(REQUEST, candidates=4))
    with (
        pytest.raises(InputError, match="holds another search"),
        TuningDirectory(path).opened(plan),
    ):
        pass
    (tmp_path / "notes.txt").write_text("mine")
    with (
        pytest.raises(InputError, match="holds other files"),
        TuningDirectory(tmp_path).opened(plan),
    ):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_overwriting_removes_only_what_a_search_wrote(whole, tmp_path):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "fedavg/mine.txt").write_text("mine")
    (copy / "notes.txt").write_text("mine")
    plan = plan_tuning(DIGITS, replace(REQUEST, algorithms=["mifa"], candidates=1))
    with TuningDirectory(copy).opened(plan, overwrite=True):
        pass
    left = {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()}
    assert left == {
        ".lock",
        "fedavg/mine.txt",
        "notes.txt",
        "tune.toml",
        "fedpbc-manifest.json",
    }


def test_overwriting_with_a_disk_that_fails_leaves_a_search_that_can_be_run(
    whole, tmp_path, monkeypatch
):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    other = plan_tuning(DIGITS, replace(REQUEST, algorithms=["mifa"], candidates=1))

    def fail(path, *_):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(plan_files, "write_atomically", fail)
        with (
            pytest.raises(OSError, match="Input/output"),
            TuningDirectory(copy).opened(other, overwrite=True),
        ):
            raise AssertionError("the plan could not be written")
    assert TuningDirectory(copy).verify().damage == ()
    search(copy)
    assert (copy / "tuning.json").read_bytes() == (path / "tuning.json").read_bytes()


@pytest.mark.parametrize("empty", [False, True])
def test_links_are_not_followed(whole, tmp_path, empty):
    path, _, _ = whole
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    shutil.copytree(path, copy)
    shutil.move(copy / "fedavg", outside)
    if empty:
        shutil.rmtree(outside)
        outside.mkdir()
    (copy / "fedavg").symlink_to(outside)
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    plan = plan_tuning(DIGITS, REQUEST)
    for overwrite in (False, True):
        with (
            pytest.raises(InputError, match="it is a link, which is not followed"),
            TuningDirectory(copy).opened(plan, overwrite=overwrite),
        ):
            pass
    assert {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()} == before


def test_a_run_that_cannot_be_locked_is_found_before_anything_is_changed(whole, tmp_path):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    lock = copy / "fedpbc/candidate-1/seed-0/.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    with (
        pytest.raises(InputError, match=r"\.lock is not a regular file"),
        TuningDirectory(copy).opened(plan_tuning(DIGITS, REQUEST), overwrite=True),
    ):
        pass
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", ["tuned-fedavg.toml", "tuning.json"])
def test_a_folder_in_place_of_a_result_is_found_before_anything_is_removed(whole, tmp_path, name):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / name).unlink(missing_ok=True)
    (copy / name).mkdir()
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    plan = plan_tuning(DIGITS, REQUEST)
    with (
        pytest.raises(InputError, match=f"{name}.* is not a regular file"),
        TuningDirectory(copy).opened(plan, overwrite=True),
    ):
        pass
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before
    assert any(each.file == copy / name for each in TuningDirectory(copy).verify().damage)


def test_the_written_choice_is_what_other_commands_take(whole):
    from fedpbc.experiments.config_file import read_toml
    from fedpbc.experiments.configuration import Config

    path, result, _ = whole
    for tuned in result.entries:
        config = Config.from_dict(read_toml(path / f"tuned-{tuned.label}.toml"))
        assert config.algorithm["name"] == tuned.label
        assert config.task.validation is None
        settings = tuned.best.settings
        assert config.train.learning_rate == settings["train.learning_rate"]
        assert config.train.global_learning_rate == settings["train.global_learning_rate"]
        assert config.general.deploy_view == tuned.best.score.view
    values = read_toml(path / "tuned.toml")
    assert list(values["algorithms"]) == ["fedavg", "fedpbc"]
    chosen = {label: table["deploy_view"] for label, table in values["algorithms"].items()}
    assert chosen == {tuned.label: tuned.best.score.view for tuned in result.entries}
    assert json.loads((path / "tuning.json").read_text())["validation"] == 0.2


def test_evaluations_that_a_checkpoint_contradicts_do_not_decide(whole, tmp_path):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "tuning.json").unlink()
    paused = [
        r for r in map(RunDirectory, copy.glob("fedavg/candidate-*/seed-0")) if not r.finished
    ]
    for run in paused:
        lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
        if not lines:
            continue  # It diverged.
        for view in lines[-1]["views"].values():
            view["test_accuracy"] = 1.0
        run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    search(copy)
    assert (copy / "tuning.json").read_bytes() == (path / "tuning.json").read_bytes()


@pytest.mark.parametrize("tail", ["an empty object", "the last line again, better"])
def test_evaluations_after_a_checkpoint_that_no_run_wrote_do_not_decide(whole, tmp_path, tail):
    path, _, _ = whole
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "tuning.json").unlink()
    for run in map(RunDirectory, copy.glob("*/candidate-*/seed-0")):
        lines = run.metrics_path.read_text().splitlines()
        if run.finished or not lines:
            continue
        better = lines[-1].replace('"test_accuracy": 0.', '"test_accuracy": 0.99')
        with run.metrics_path.open("a") as file:
            file.write("{}\n" if "empty" in tail else better + "\n")
        [damage] = verify_run(run.path).damage
        assert damage.repairable
        assert damage.file == run.metrics_path
    search(copy)
    assert (copy / "tuning.json").read_bytes() == (path / "tuning.json").read_bytes()


def finished_copy(path, target):
    """A finished search, as the command leaves it: without checkpoints."""
    shutil.copytree(path, target)
    directory = TuningDirectory(target)
    directory.remove_checkpoints()
    assert directory.finished
    return directory


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["tuning.json", "tuned.toml", "tuned-fedavg.toml", "table.md", "tuning.png", "metrics"]
)
def test_a_damaged_result_is_made_again(whole, tmp_path, name):
    path, _, _ = whole
    directory = finished_copy(path, tmp_path / "copy")
    file = directory.path / name
    runs = [RunDirectory(f) for f in directory.path.glob("*/candidate-*/seed-0")]
    if name == "metrics":
        file = next(run.metrics_path for run in runs if not run.finished and run.metrics())
    times = {run.path: run.metrics_path.read_bytes() for run in runs}
    file.write_bytes(file.read_bytes()[:-9] + b"9" * 8 + b"\n")
    assert [(d.file, d.repairable) for d in directory.verify().damage] == [(file, True)]
    assert not directory.finished
    search(directory.path)
    assert directory.finished
    for result in ("tuning.json", "tuned.toml", "tuned-fedavg.toml", "table.md", "tuning.png"):
        assert (directory.path / result).read_bytes() == (path / result).read_bytes()
    # Candidates whose evaluations are as they were written are not run again.
    again = [run for run, content in times.items() if RunDirectory(run).metrics_bytes() != content]
    assert again == ([file.parent] if name == "metrics" else [])


def test_a_damaged_plan_is_refused(whole, tmp_path):
    path, _, _ = whole
    directory = finished_copy(path, tmp_path / "copy")
    text = directory.plan_path.read_text()
    plan = plan_tuning(DIGITS, REQUEST)
    for content in (text.replace("rounds = 18", "rounds = 27"), "nonsense", None):
        directory.plan_path.unlink()
        if content is not None:
            directory.plan_path.write_text(content)
        line = "tune.toml is damaged: it is not as it was written; restore it, or start again"
        with pytest.raises(InputError, match=line):
            directory.load_plan()
        if content is not None:
            with pytest.raises(InputError, match=line), directory.opened(plan):
                pass
        # Nothing of the old search is left for the new one to find.
        shutil.copytree(directory.path, tmp_path / "over")
        over = TuningDirectory(tmp_path / "over")
        with over.opened(plan_tuning({**DIGITS, "rounds": 27}, REQUEST), overwrite=True):
            assert not list(over.path.glob("*/candidate-*"))
        shutil.rmtree(over.path)
        directory.plan_path.write_text(text)
