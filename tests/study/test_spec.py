"""A run is a value: complete, with one id for all ways of writing it."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.errors import InputError
from fedpbc.study.spec import Execution, Spec, command_options, run_id
from fedpbc.study.study import Run, Study

values = st.fixed_dictionaries(
    {},
    optional={
        "rounds": st.integers(1, 1000),
        "seed": st.integers(0, 2**40),
        "clients": st.integers(1, 200),
        "algorithm": st.sampled_from(["fedavg", "fedau:cutoff=5", {"name": "mifa"}, "fedpbc"]),
        "links": st.sampled_from(["markov", "bernoulli:p=0.5", {"p": 1}, "always", {"sigma": 3}]),
        "downlink": st.sampled_from(["always", {"name": "bernoulli", "p": 0.25}]),
        "data": st.sampled_from(["digits", {"alpha": 1}, "shakespeare", "synthetic:classes=3"]),
        "model": st.sampled_from(["mlp", {"name": "softmax"}]),
        "train": st.fixed_dictionaries(
            {},
            optional={
                "learning_rate": st.floats(1e-6, 10),
                "optimizer": st.sampled_from(["sgd:momentum=0.9", {"name": "adam"}, "Rprop"]),
                "schedule": st.sampled_from(["constant", {"name": "cosine", "rounds": 7}]),
            },
        ),
        "task": st.sampled_from([{"validation": 0.25}, "classification", {"loss": "squared"}]),
    },
)


@given(values)
def test_what_is_written_is_the_same_run(given):
    spec = Spec.of(given)
    again = Spec.of(tomllib.loads(tomli_w.dumps(spec.dump())))
    assert again == spec
    assert again.id == spec.id == run_id(spec.dump(), {})


@given(values, st.permutations(range(10)))
def test_the_order_of_settings_does_not_matter(given, order):
    items = list(given.items())
    shuffled = dict(sorted(items, key=lambda item: order[items.index(item)]))
    assert Spec.of(shuffled).id == Spec.of(given).id


SAME = [
    ({"links": "bernoulli:p=1"}, {"links": {"name": "bernoulli", "p": 1.0}}),
    ({"links": {"p": np.float64(0.5)}}, {"links": "bernoulli_varying:p=0.5"}),
    ({"data": "digits"}, {"data": {"name": "digits", "alpha": 0.1}, "model": "mlp"}),
    ({}, {"algorithm": "fedpbc", "rounds": 500, "clients": 100, "downlink": "always"}),
    ({"train": {"optimizer": "sgd"}}, {"train": {"optimizer": {"name": "sgd", "momentum": 0}}}),
    ({"evaluate_every": 4}, {"evaluate_every": 4, "evaluate_every_at_end": 4}),
    ({"data": "shakespeare"}, {"data": "shakespeare", "model": "lstm", "rounds": 60}),
    ({"engine": "serial", "reported": "disk"}, {"engine": "pool:workers=2", "device": "cuda"}),
    ({"views": ["averaged", "server"]}, {"views": ["server", "averaged"]}),
    ({"task": {"name": "classification"}}, {"task": {"validation": None}}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_ways_of_writing_a_run_are_the_same_run(one, other):
    assert Spec.of(one).id == Spec.of(other).id


OTHERS = [
    {"seed": 1},
    {"links": "markov"},
    {"train": {"optimizer": "sgd:momentum=0.1"}},
    {"train": {"global_learning_rate": 0.5}},
    {"aggregation": "median"},
    {"aggregation": {"clip": 1}},
    {"evaluate_every": 5},
    {"evaluate_every_at_end": 5},
    {"views": ["server"]},
    {"task": {"validation": 0.1}},
    {"data": {"alpha": 1}},
]


@pytest.mark.parametrize("other", OTHERS)
def test_what_changes_a_result_changes_the_id(other):
    assert Spec.of(other).id != Spec.of({}).id


def test_a_file_counts_by_its_content_and_not_by_its_place(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / f"{folder}.npy", np.ones((3, 2)))
    specs = [Spec.of({"task": {"targets": str(tmp_path / k / f"{k}.npy")}}) for k in "ab"]
    assert specs[0].id == specs[1].id
    assert specs[0].clients == 3
    assert specs[0].train.batch_size is None
    np.save(tmp_path / "b" / "b.npy", np.zeros((3, 2)))
    changed = Spec.of({"task": {"targets": str(tmp_path / "b" / "b.npy")}})
    assert changed.id != specs[0].id


def test_a_data_folder_is_no_part_of_the_identity(tmp_path):
    one = Spec.of({"data": {"name": "cifar10", "dir": str(tmp_path)}})
    assert one.id == Spec.of({"data": "cifar10"}).id


def test_an_app_counts_by_its_code(tmp_path):
    (tmp_path / "app.py").write_text("1")
    spec = Spec.of({"task": {"app": str(tmp_path / "app.py")}, "clients": 2})
    (tmp_path / "moved.py").write_text("1")
    moved = Spec.of({"task": {"app": str(tmp_path / "moved.py")}, "clients": 2})
    (tmp_path / "app.py").write_text("2 + 2")
    assert moved.id == Spec.of({**spec.dump(), "task": moved.task}).id
    assert spec.id != moved.id


def test_a_plugin_is_known_before_its_algorithm_is_looked_up(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fedpbc import Algorithm, register_algorithm\n"
        "@register_algorithm\n"
        "class Lazy(Algorithm):\n"
        "    name = 'lazy_one'\n"
        "    def __init__(self, init, *, rest: int = 3):\n"
        "        super().__init__(init)\n"
        "    def aggregate(self, round, updates): ...\n"
    )
    spec = Spec.of({"plugins": [str(tmp_path / "mine.py")], "algorithm": "lazy_one"})
    assert spec.algorithm.table() == {"name": "lazy_one", "rest": 3}
    assert run_id(spec.dump(), spec.files()) == spec.id


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"rounds": 0}, "rounds is 0, but should be at least 1"),
        ({"rounds": 2.5}, "rounds is 2.5, but should be a valid integer"),
        ({"rounds": True}, "rounds is True, but should be a valid integer"),
        ({"round": 3}, "round is unknown: use one of rounds, seed, "),
        ({"train": {"lr": 1}}, "train.lr is unknown: use learning_rate"),
        ({"lr": 1}, "lr is unknown: use train.learning_rate"),
        ({"num_clients": 9}, "num_clients is unknown: use clients"),
        ({"data": {"dirichlet_alpha": 1}}, "data.dirichlet_alpha is unknown: use alpha"),
        ({"train": {"momentum": 0.9}}, "train.momentum is unknown: use train.optimizer.momentum"),
        ({"wd": 0.1}, "wd is unknown: use train.optimizer.weight_decay"),
        ({"evaluate_every_at_end": 0}, "evaluate_every_at_end is 0, but should be at least 1"),
        ({"train": {"learning_rate": -1}}, "train.learning_rate is -1, but should be above 0"),
        ({"train": {"learning_rate": float("inf")}}, "should be a finite number"),
        ({"train": {"optimizer": "sgd:momentum=1.5"}}, "train.optimizer.momentum is 1.5"),
        ({"train": {"optimizer": "python:mine"}}, "a name: functions are for Python"),
        ({"train": 3}, "train is 3, but should be a table [train]"),
        ({"algorithm": "fedab"}, "did you mean 'fedau'?"),
        ({"views": ["mean"], "algorithm": "fedavg"}, "among server, averaged for fedavg"),
        ({"views": "server"}, "a list, such as ['server']"),
        ({"aggregation": "median", "algorithm": "fedau"}, "fedau weights or sums up"),
        ({"task": "quadratic"}, "task.targets is missing"),
        ({"task": {"app": __file__}}, "clients is missing: say for how many clients"),
        (
            {"task": {"targets": "none.npy"}},
            "task.targets is 'none.npy', but should be a file that exists",
        ),
        ({"task": "python", "data": "digits"}, "'python' does not use it: leave it out"),
        ({"plugins": ["none.py"]}, "plugins is 'none.py', but should be a Python file that exists"),
        ({"plugins": "a.py"}, "plugins is 'a.py', but should be a list of Python files"),
        ({"seeds": [1]}, "seeds is for 'fedpbc compare': leave it out"),
    ],
)
def test_errors_are_one_line_that_says_what_is_right(wrong, line):
    with pytest.raises(InputError) as error:
        Spec.of(wrong)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_quadratic_task_has_no_batches_and_as_many_clients_as_targets(tmp_path):
    np.save(tmp_path / "t.npy", np.ones((4, 2)))
    targets = {"targets": str(tmp_path / "t.npy")}
    with pytest.raises(InputError, match=r"clients is 5, but should be left out, or 4"):
        Spec.of({"task": targets, "clients": 5})
    with pytest.raises(InputError, match=r"train.batch_size is 3, but a quadratic task has no"):
        Spec.of({"task": targets, "train": {"batch_size": 3}})
    assert {"data", "model"}.isdisjoint(Spec.of({"task": targets}).dump())


def test_a_configuration_is_a_table():
    for read in (Spec.of, Study.of):
        with pytest.raises(InputError, match="the configuration is 3, but should be a table"):
            read(3)


WEIRD = (
    *(3, 2.5, True, "x", "x:y=1", "", [], ["x"], [3], [{}], {}, {"name": 3}, {"name": []}),
    *({"x": {}}, {"name": "x", "y": None}, {"name": "markov", "p": "x"}, {"optimizer": 3}),
    *({"schedule": []}, {"name": {}}, float("nan"), 10**30, b"x", object(), {3: 4}),
)


@pytest.mark.parametrize(
    "key", [*Spec.model_fields, *Execution.model_fields, "algorithms", "seeds", "sweep", "ceiling"]
)
def test_whatever_is_given_is_right_or_refused_in_one_line(key):
    lines = []
    for value in WEIRD:
        for read in (Run.of, lambda values: Study.of({"data": "digits", **values}).runs()):
            try:
                read({key: value})
            except InputError as error:
                lines.append(str(error))
    assert not any("\n" in line for line in lines)


def test_every_option_of_the_command_line_sets_what_it_says():
    names = {option.name for option in command_options()}
    assert {"rounds", "links", "data_dir", "alpha", "app", "learning_rate", "engine"} <= names
    for option in command_options():
        assert option.key.partition(".")[0] in {*Spec.model_fields, *Execution.model_fields}
        assert option.help.endswith(".")
        assert option.type in (int, float, str, list)


def test_how_a_run_is_executed_is_checked_against_what_it_is():
    spec = Spec.of({"algorithm": "fedavg"})
    with pytest.raises(InputError, match="fedavg keeps no last reports with these views"):
        Execution.of({"reported": "disk"}, spec)
    with pytest.raises(InputError, match="deploy_view is 'mean'"):
        Execution.of({"deploy_view": "mean"}, spec)
    with pytest.raises(InputError, match=r"engine\.workers is -1"):
        Execution.of({"engine": "pool:workers=-1"}, spec)
    assert Execution.of({"track": "tensorboard"}, spec).track == ("tensorboard",)
