"""The runs of an experiment, and input that is refused before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpbc.errors import InputError
from fedpbc.paper import EXPERIMENTS, ExperimentRequest
from fedpbc.paper.directory import PaperDirectory, fingerprint
from fedpbc.paper.plan import plan_conditions, plan_runs
from fedpbc.paper.table1 import LINKS
from fedpbc.simulation.evaluation_schedule import EvaluationSchedule, window_of
from tests.commandline import content, fedpbc, refused
from tests.small_grids import SMALL

pytestmark = pytest.mark.slow


def request(**options):
    return ExperimentRequest(out=Path("nowhere"), **options)


def test_the_papers_scale_is_the_default():
    conditions = plan_conditions(request(), ["svhn", "cifar10", "cinic10"], LINKS)
    assert len(conditions) == 18
    assert {(c.data, c.rounds) for c in conditions} == {
        ("svhn", 4000),
        ("cifar10", 10_000),
        ("cinic10", 10_000),
    }
    runs = plan_runs(request(), conditions, [0, 1, 2], evaluate_every=10)
    assert len(runs) == 7 * 6 * 3 * 3
    assert len({run.folder for run in runs}) == len(runs)
    assert runs[0].folder == "svhn/bernoulli/fedpbc/seed-0"
    assert runs[0].weight == 10 * runs[3].weight


def test_settings_take_precedence_over_tuned_step_sizes_and_a_conditions_changes_over_both():
    given = request(settings={"train": {"learning_rate": 0.2, "local_steps": 3}})
    [condition] = plan_conditions(given, ["digits"], ["always"], 5)
    tuned = {("digits", "fedavg"): {"learning_rate": 0.01, "global_learning_rate": 1.5}}
    runs = {
        r.algorithm: r for r in plan_runs(given, [condition], [0], evaluate_every=1, train=tuned)
    }
    assert runs["fedavg"].config["train"] == {
        "learning_rate": 0.2,
        "global_learning_rate": 1.5,
        "local_steps": 3,
    }
    assert runs["mifa"].config["train"] == {"learning_rate": 0.2, "local_steps": 3}
    changed = replace(condition, changes={"train": {"learning_rate": 7.0}})
    [run, *_] = plan_runs(given, [changed], [0], evaluate_every=1, train=tuned)
    assert run.config["train"]["learning_rate"] == 7.0


def test_cyclic_reset_is_that_of_the_released_code_unless_set():
    def gammas(settings):
        given = request(settings=settings)
        conditions = plan_conditions(given, ["digits"], ["cyclic", "cyclic_reset"], 5)
        runs = plan_runs(given, conditions, [0], evaluate_every=1)
        return {(run.condition.links, run.config["links"].get("gamma")) for run in runs}

    assert gammas({}) == {("cyclic", None), ("cyclic_reset", 0.4)}
    of_text = gammas({"links": {"gamma": 0.0}})
    assert ("cyclic_reset", 0.0) in of_text
    assert ("cyclic_reset", 0.4) not in of_text


def test_a_fingerprint_depends_on_what_changes_the_results():
    config = {"data": {"name": "digits", "dir": "/a"}, "seed": 0, "workers": 1}
    assert fingerprint(config) == fingerprint({**config, "data": {"name": "digits", "dir": "/b"}})
    assert fingerprint(config) == fingerprint({**config, "workers": 2})
    assert fingerprint(config) != fingerprint({**config, "seed": 1})
    assert fingerprint(config) != fingerprint({**config, "data": {"name": "fashion"}})


def test_a_plugin_that_changed_makes_another_run(tmp_path):
    plugin = tmp_path / "p.py"
    plugin.write_text("a = 1\n")
    config = {"data": {"name": "digits"}, "plugins": [str(plugin)]}
    before = fingerprint(config)
    plugin.write_text("a = 2\n")
    assert fingerprint(config) != before


def test_each_of_several_data_sets_is_found_in_one_folder(tmp_path):
    (tmp_path / "uoft-cs/cifar10").mkdir(parents=True)
    (tmp_path / "svhn").mkdir()
    given = request(data_dir=tmp_path, data=["cifar10", "svhn", "digits"])
    runs = plan_runs(given, plan_conditions(given, [], ["always"], 1), [0], evaluate_every=1)
    folders = {run.condition.data: run.config["data"].get("dir") for run in runs}
    assert folders == {"cifar10": str(tmp_path), "svhn": str(tmp_path / "svhn"), "digits": None}
    loose = request(data_dir=tmp_path, data=["cifar10", "cinic10"])
    with pytest.raises(InputError, match="a folder with flwrlabs/cinic10/ or cinic10/"):
        plan_runs(loose, plan_conditions(loose, [], ["always"], 1), [0], evaluate_every=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "cifar9"), "data is 'cifar9', but should be one of"),
        (("--data", "digits,digits"), "different names"),
        (("--data", ","), "at least one"),
        (("--links", "carrier_pigeon"), "links is 'carrier_pigeon'"),
        (("--algorithms", "fedpbc,nobody"), "algorithm is 'nobody'"),
        (("--algorithms", "fedpbc,fedpbc"), "different names"),
        (("--seeds", "0,x"), "should be different whole numbers"),
        (("--seeds", "0,-1"), "whole numbers from 0"),
        (("--seeds", "0,0"), "different whole numbers"),
        (("--rounds", "0"), "rounds is 0"),
        (("--jobs", "0"), "jobs is 0"),
        (("--set", "rounds=5"), "use --rounds"),
        (("--set", "algorithm.cutoff=5"), "use --algorithms"),
        (("--set", "algorithms.scaffold.x=5"), "algorithms.scaffold"),
        (("--set", "links.name=markov"), "use --links"),
        (("--set", "task.targets=a.npy"), "classification"),
        (("--set", "links.gamma=0.2", "--links", "bernoulli"), "links.gamma is unknown"),
        (("--set", "train.learning_rate=-1"), "train.learning_rate"),
        (
            ("--data-dir", "/nowhere"),
            "--data-dir is not needed for digits: the data is in the package",
        ),
        (("--data", "cifar10", "--data-dir", "/nowhere"), "an existing folder"),
        (("--tuned", "/nowhere/chosen.toml"), "a file that 'fedpbc paper tune' wrote"),
        (("--plugin", "/nowhere/mine.py"), "a Python file that exists"),
        (("--engine", "steam"), "engine is 'steam'"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(tmp_path, options, message):
    out = tmp_path / "out"
    assert message in refused(fedpbc("paper", "table1", *SMALL, *options, "--out", out))
    assert not out.exists()


def test_a_wrong_folder_for_one_data_set_is_found_before_another_starts(tmp_path):
    (tmp_path / "data/uoft-cs/cifar10").mkdir(parents=True)
    out = tmp_path / "out"
    few = (*SMALL[2:], "--data", "digits,cifar10", "--data-dir", tmp_path / "data")
    assert "has no train images" in refused(fedpbc("paper", "table1", *few, "--out", out))
    assert not out.exists()


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    line = refused(fedpbc("paper", "table1", *SMALL, "--out", tmp_path))
    assert "holds other files" in line
    file = tmp_path / "letter.txt"
    assert "this is a file" in refused(fedpbc("paper", "table1", *SMALL, "--out", file))
    (tmp_path / "plan.toml").write_text("experiment = 'moon landing'\n")
    assert "holds other files" in refused(fedpbc("paper", "table1", *SMALL, "--out", tmp_path))
    assert PaperDirectory(tmp_path, "table1").recorded_runs == {}


def test_a_folder_in_place_of_a_result_is_refused_before_anything_runs(tmp_path):
    """Writing would fail when all runs are done, with the earlier results removed."""
    conditions = plan_conditions(request(), ["digits"], ["always"], 5)
    run = plan_runs(request(), conditions, [0], evaluate_every=1)[0]
    directory = PaperDirectory(tmp_path, "table1")
    with directory.opened([run], "fedpbc paper table1"):
        pass
    for name in ("fedpbc-manifest.json", "table1-digits.svg", "chosen.toml"):
        (tmp_path / name).mkdir()
        before = content(tmp_path)
        with pytest.raises(InputError, match=f"{name} is a folder where a result belongs: remove"):
            directory.check([run])
        with (
            pytest.raises(InputError, match=f"{name} is a folder where a result belongs: remove"),
            directory.opened([run], "fedpbc paper table1", overwrite=True),
        ):
            pass
        assert content(tmp_path) == before
        (tmp_path / name).rmdir()


def test_links_in_place_of_its_folders_are_not_followed(tmp_path):
    """Whoever sent the folder would choose where its runs are written."""
    conditions = plan_conditions(request(), ["digits"], ["always"], 5)
    run = plan_runs(request(), conditions, [0], evaluate_every=1)[0]
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    directory = PaperDirectory(out, "table1")
    with directory.opened([run], "fedpbc paper table1"):
        pass
    for name, place in (("digits", run.folder), ("inputs", "inputs")):
        (out / name).symlink_to(elsewhere)
        for overwrite in (False, True):
            with (
                pytest.raises(InputError, match=f"{place} is a link, or behind one"),
                directory.opened([run], "fedpbc paper table1", overwrite=overwrite),
            ):
                pass
        # Nor is what is there read, to see how far it is.
        with pytest.raises(InputError, match=f"{place} is a link, or behind one"):
            directory.check([run])
        (out / name).unlink()


def test_a_plan_that_is_a_link_is_no_plan(tmp_path):
    conditions = plan_conditions(request(), ["digits"], ["always"], 5)
    run = plan_runs(request(), conditions, [0], evaluate_every=1)[0]
    for name in ("mine", "sent"):
        with PaperDirectory(tmp_path / name, "table1").opened([run], "fedpbc paper table1"):
            pass
    plan = tmp_path / "sent" / "plan.toml"
    plan.unlink()
    plan.symlink_to(tmp_path / "mine" / "plan.toml")
    before = (tmp_path / "mine" / "plan.toml").read_bytes()
    sent = PaperDirectory(tmp_path / "sent", "table1")
    assert sent.recorded_runs == {}
    for overwrite in (False, True):
        with (
            pytest.raises(InputError, match="holds other files"),
            sent.opened([run], "another command", overwrite=overwrite),
        ):
            pass
    assert (tmp_path / "mine" / "plan.toml").read_bytes() == before


def test_an_unknown_experiment_and_an_option_it_does_not_have():
    assert "ID is 'table3', but should be" in refused(fedpbc("paper", "table3"))
    line = refused(fedpbc("paper", "tune", "--tuned", "a.toml"))
    assert line == "tune has no option --tuned: leave it out"


def test_the_command_line_knows_every_experiment():
    ended = fedpbc("paper")
    assert ended.code == 2
    flat = " ".join(ended.out.split())
    for name in EXPERIMENTS:
        assert name in flat


def test_the_command_repeats_the_experiment():
    given = request(
        data=["cifar10"],
        data_dir=Path("/d"),
        seeds=[0, 1],
        rounds=450,
        settings={"links": {"gamma": 0.2}, "plugins": ["my own.py"], "device": "cuda:1"},
    )
    assert given.command("table2") == (
        "fedpbc paper table2 --data cifar10 --data-dir /d --seeds 0,1 --rounds 450 "
        "--plugin 'my own.py' --set links.gamma=0.2 --set device=cuda:1 --out nowhere"
    )


@pytest.mark.parametrize(
    ("rounds", "every", "count"), [(10_000, 100, 109), (4000, 100, 49), (450, 20, 27), (60, 10, 6)]
)
def test_evaluations_are_frequent_only_where_they_are_averaged(rounds, every, count):
    given = request(rounds=rounds)
    [run, *_] = plan_runs(given, plan_conditions(given, ["svhn"], ["cyclic"]), [0])
    values = [run.config[key] for key in ("rounds", "evaluate_every", "evaluate_every_at_end")]
    assert values == [rounds, every, 10]
    due = EvaluationSchedule(*values).due(rounds)
    assert len(due) == count
    first = rounds - window_of(rounds)
    # What is averaged is what it always was.
    assert [t for t in due if t > first] == [t for t in range(10, rounds + 1, 10) if t > first]
