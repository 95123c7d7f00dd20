"""What follows from the records of a study: rows, differences, verdicts, by condition."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from fedpbc.errors import InputError
from fedpbc.study.build import check
from fedpbc.study.pool import run_all
from fedpbc.study.record import Record
from fedpbc.study.results import Results
from fedpbc.study.run_folder import RunFolder
from fedpbc.study.study import Study
from fedpbc.study.study_folder import StudyFolder

SMALL = {"data": "digits", "clients": 6, "rounds": 10, "evaluate_every": 2}


def stored(folder: Path, jobs: int = 1, **given: object) -> Results:
    """A study in its folder; also again, or widened."""
    study = Study.of({**SMALL, **given})
    with StudyFolder(folder).opened(study, check=check) as runs:
        return Results(run_all(runs, jobs, group=folder))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "study"
    stored(folder, algorithms=["fedpbc", "fedavg"], seeds="0-1", ceiling=True,
           sweep={"data.alpha": [0.1, 1]})  # fmt: skip
    return folder


def test_what_is_read_is_what_was_returned(swept):
    again = stored(swept, algorithms=["fedpbc", "fedavg"], seeds="0-1", ceiling=True,
                   sweep={"data.alpha": [0.1, 1]})  # fmt: skip
    assert Results.read(swept).as_dict() == again.as_dict()
    assert len(again.finished) == 12


def test_each_condition_has_its_entries_and_its_ceiling(swept):
    parts = Results.read(swept).by_condition()
    assert {condition: part.labels for condition, part in parts.items()} == {
        f"data.alpha={alpha}": [f"{name}:alpha={alpha}" for name in ("fedpbc", "fedavg", "ceiling")]
        for alpha in ("0.1", "1")
    }
    paired = parts["data.alpha=1"].paired()
    assert paired.baseline == "fedavg:alpha=1"
    assert paired.links_cost is not None
    assert paired.row("fedpbc:alpha=1").difference.seeds == (0, 1)


def test_rows_differences_and_verdict_are_those_of_before(swept, tmp_path):
    from fedpbc.experiments.comparison_directory import ComparisonDirectory, plan_comparison

    given = {**SMALL, "algorithms": ["fedpbc", "fedavg"], "seeds": "0-1", "ceiling": True,
             "sweep": {"data.alpha": [0.1, 1]}}  # fmt: skip
    old = ComparisonDirectory(tmp_path / "old")
    with old.opened(plan_comparison(given)) as plan:
        before = old.run(plan, 1, lambda _: None).as_dict()
    text = json.dumps(before).replace(":data.alpha=", ":alpha=")
    assert json.loads(json.dumps(Results.read(swept).as_dict())) == json.loads(text)


def test_a_label_says_nothing_about_the_role(tmp_path):
    tables = {
        "ceiling of the house": {"name": "fedpbc"},
        "reference": {"name": "fedau", "role": "baseline"},
        "best": {"name": "fedavg", "role": "ceiling", "links": "always"},
    }
    results = stored(tmp_path, algorithms=tables, seeds=[0])
    assert results.paired().baseline == "reference"
    assert "best" not in results.verdict().means
    assert "ceiling of the house" in results.verdict().means


def test_the_baseline_may_be_named_by_its_algorithm(swept):
    part = Results.read(swept).by_condition()["data.alpha=1"]
    assert part.paired("fedpbc").baseline == "fedpbc:alpha=1"
    with pytest.raises(InputError, match="baseline is 'mifa'"):
        part.paired("mifa")


def test_processes_give_the_same_results(swept, tmp_path):
    results = stored(tmp_path, 2, algorithms=["fedpbc", "fedavg"], seeds="0-1", ceiling=True,
                     sweep={"data.alpha": [0.1, 1]})  # fmt: skip
    assert results.as_dict() == Results.read(swept).as_dict()


def study_in(folder: str) -> None:
    """For processes that are killed."""
    stored(Path(folder), 2, algorithms=["fedpbc", "fedavg"], seeds="0-1", checkpoint_every=1)


@pytest.mark.slow
def test_a_study_killed_again_and_again_comes_to_the_same_results(fork_server, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    study_in(str(whole))
    dice, killed = random.Random(1), 0
    kills = [{"at": "after rename", "n": 1}, {"at": "sync", "n": 2}]
    for kill in [*kills, *({"after": dice.uniform(0.5, 5)} for _ in range(4)), None]:
        ended = fork_server.run("tests.study.test_results:study_in", broken, kill=kill)
        assert ended.code in (0, -signal.SIGKILL), ended.err
        killed += ended.code != 0
    assert killed >= 2
    assert Results.read(broken).as_dict() == Results.read(whole).as_dict()


def test_a_failure_stops_no_other_run(tmp_path):
    tables = {"fedpbc": {}, "wild": {"name": "fedavg", "learning_rate": 1e30}}
    results = stored(tmp_path, algorithms=tables, seeds=[0, 1])
    assert [run.label for run in results.failed] == ["wild", "wild"]
    assert "diverged" in results.failed[0].failure
    assert results.as_dict()["failed"][0]["label"] == "wild"
    assert [row.label for row in results.rows if row.best_deployable] == ["fedpbc"]
    assert [run.failure for run in Results.read(tmp_path).failed] == [
        run.failure for run in results.failed
    ]


def test_one_run_is_a_table_of_one(swept):
    run = Results.read(swept / "fedpbc-alpha=1" / "seed-0")
    assert run.labels == ["fedpbc"]
    assert len(run.rows) == 5
    assert RunFolder(swept / "fedpbc-alpha=1" / "seed-0").finished


def test_curves_are_means_over_seeds(swept):
    rounds, means, deviations = Results.read(swept).curve("fedavg:alpha=1", "server")
    assert rounds == [2, 4, 6, 8, 10]
    assert len(means) == len(deviations) == 5
    with pytest.raises(InputError, match="view is 'mean', but should be one of server"):
        Results.read(swept).curve("fedavg:alpha=1", "mean")


def scored(label: str, seed: int, score: float, losses: list[float], **values: object) -> Record:
    """A run of ten rounds, evaluated after each."""
    train = {"learning_rate": 0.05, "global_learning_rate": 1.0}
    lines = [
        {
            "round": t + 1,
            "local_steps": 50,
            "uploads": 10,
            "views": {"server": {"test_accuracy": score, "test_loss": loss}},
        }
        for t, loss in enumerate(losses)
    ]
    result = {"cost": {"models_on_server": {"server": 1}, "models_on_client": 0}}
    settings = {"algorithm": {"name": label}, "train": train, **values}
    return Record(label, "entry", "", seed, settings, lines, result)


def test_a_loss_without_meaning_is_divergence_and_not_averaged_in():
    fine = [2.0] * 10
    runs = [scored("fedavg", k, 0.5 + k / 100, fine) for k in range(3)]
    runs += [scored("mifa", k, 0.9, [2.0, *[1e20 if k == 1 else 2.0] * 9]) for k in range(3)]
    results = Results(runs)
    assert results.verdict().not_ranked == {"mifa": "diverged with seed 1"}
    assert results.verdict().best == "fedavg"
    assert results.paired().row("mifa").seeds == (0, 2)


def test_step_sizes_are_tuned_where_entries_have_their_own_or_a_search_chose_views():
    def is_tuned(first: dict[str, object], second: dict[str, object]) -> bool:
        losses = [1.0] * 10
        return "untuned" not in str(
            Results(
                [
                    scored("fedavg", 0, 0.5, losses, **first),
                    scored("mifa", 0, 0.6, losses, **second),
                ]
            ).verdict()
        )

    view = {"deploy_view": "server"}
    assert not is_tuned({}, {})
    assert not is_tuned(view, {})
    assert is_tuned(view, view)
    assert is_tuned({}, {"train": {"learning_rate": 0.1, "global_learning_rate": 1.0}})
