"""A setting that was given but that nothing reads is an error that names it and the remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedpbc import SCHEMES, Config, InputError, Quadratic, compare, link_scheme, simulate
from fedpbc.experiments.build import build_experiment
from fedpbc.experiments.comparison_directory import plan_comparison
from fedpbc.experiments.overrides import configuration_values
from fedpbc.experiments.resume import resume_run
from fedpbc.experiments.start import start_run
from fedpbc.tasks import LocalTraining
from tests.commandline import fedpbc, refused, write_check

QUADRATIC = {"task": {"targets": "targets.npy"}, "links": {"name": "bernoulli", "p": 0.5}}
SMALL = {"data": "digits", "clients": 4, "rounds": 1}

UNUSED = [
    (
        {"downlink": {"p": 0.01}},
        "downlink.p is 0.01, but downlink 'always' does not use it: choose a scheme with "
        "--downlink bernoulli",
    ),
    (
        {"train": {"schedule": "constant", "schedule_rounds": 7}},
        "train.schedule_rounds is 7, but should be left out, since the schedule 'constant' has no",
    ),
    (
        {"train": {"schedule": "cosine", "decay": False}},
        "train.decay is False, but should be left out: the schedule 'cosine' replaces it",
    ),
    ({"downlink": {"sigma": 3.0}}, "downlink.sigma is 3.0, but downlink 'always' does not"),
    (
        {**QUADRATIC, "data": {"alpha": 0.1}},
        "data.alpha is 0.1, but a task of the kind 'quadratic'",
    ),
    ({**QUADRATIC, "data": "fashion"}, "data.name is 'fashion', but a task of the kind"),
    ({**QUADRATIC, "model": "mlp"}, "model.name is 'mlp', but a task of the kind 'quadratic'"),
    ({**QUADRATIC, "train": {"batch_size": 8}}, "train.batch_size is 8, but a quadratic task has"),
    (
        {"aggregation": {"trim": 0.1}},
        "aggregation.trim is 0.1, but the aggregation 'mean' does not",
    ),
    (
        {"train": {"optimizer": "adam", "momentum": 0.5}},
        "train.momentum is 0.5, but should be left out: the optimizer 'adam' has none",
    ),
    # A value that would be the default, if anything read it, is given nevertheless.
    ({"train": {"schedule_rounds": 100}}, "train.schedule_rounds is 100, but should be left out"),
    (
        {"train": {"schedule": "cosine", "decay": True}},
        "train.decay is True, but should be left out: the schedule 'cosine' replaces it",
    ),
    ({"aggregation": {"trim": 0.2}}, "aggregation.trim is 0.2, but the aggregation 'mean' does"),
    ({**QUADRATIC, "train": {"batch_size": 16}}, "train.batch_size is 16, but a quadratic task"),
    (
        {"links": {"name": "bernoulli", "p": 0.5, "delta": 0.02}},
        "links.delta is 0.02, but it is only for drawing links.p, which is given",
    ),
    (
        {"downlink": {"name": "always", "sigma": 10.0}},
        "downlink.sigma is 10.0, but downlink 'always' does not use it",
    ),
    (
        {"links": {"name": "group", "late_rounds": 100}},
        "links.late_rounds is 100, but links.late is 0: leave it out, or set links.late, too",
    ),
    (
        {"links": {"name": "bernoulli", "p": 0.5, "sigma": 3}},
        "links.sigma is 3, but it is only for drawing links.p, which is given",
    ),
    ({"algorithm": "fedavg", "reported": "disk"}, "reported is 'disk', but fedavg keeps no last"),
]


@pytest.mark.parametrize(("values", "line"), UNUSED)
def test_what_nothing_reads(values, line):
    with pytest.raises(InputError) as caught:
        Config.from_dict(values)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("scheme", ["always", "by_volume", "label_cyclic", "table", "trace"])
@pytest.mark.parametrize("option", ["p", "delta"])
def test_probabilities_of_links_that_have_none(tmp_path, scheme, option):
    np.save(tmp_path / "table.npy", np.ones((1, 4)))
    (tmp_path / "trace.csv").write_text("client,online_from_s,online_until_s\na,0,9\n")
    file = {"table": "table.npy", "trace": "trace.csv"}.get(scheme)
    links = {"name": scheme, option: 0.5} | ({"file": str(tmp_path / file)} if file else {})
    with pytest.raises(InputError, match=rf"^links.{option} is 0.5, but links '{scheme}' does not"):
        build_experiment(Config.from_dict({**SMALL, "links": links}))
    build_experiment(Config.from_dict({**SMALL, "links": links}, lenient=True))


def test_probabilities_of_a_scheme_of_ones_own_that_has_none():
    @link_scheme
    def mine(setting):
        for _ in range(setting.rounds):
            yield np.ones(setting.clients, dtype=bool)

    try:
        for section in ("links", "downlink"):
            config = Config.from_dict({**SMALL, section: {"name": "mine", "p": 0.5}})
            with pytest.raises(
                InputError, match=rf"^{section}.p is 0.5, but {section} 'mine' does"
            ):
                build_experiment(config)
    finally:
        del SCHEMES["mine"]


@pytest.mark.parametrize(
    "values",
    [
        {"downlink": {"name": "bernoulli", "sigma": 10.0, "delta": 0.02}},
        {"train": {"momentum": 0.9, "optimizer": "sgd"}},
        {"train": {"momentum": 0.0, "optimizer": "adam"}},
        {"train": {"schedule": "cosine", "schedule_rounds": 100}},
        {"aggregation": {"name": "trimmed_mean", "trim": 0.2}},
        {"links": {"name": "group", "late": 0.5, "late_rounds": 100}},
        {"algorithm": "fedavg", "reported": "memory"},
        {"reported": "disk"},
        {"reported": "disk", "views": ["server", "corrected"]},
        {**QUADRATIC, "data": {}},
        {"links": {"name": "bernoulli", "p": np.array([0.5, 0.5])}},
        {"workers": 3, "evaluate_every": 700},
    ],
)
def test_what_is_read_or_is_the_default(values):
    config = Config.from_dict(values)
    assert not config.unused
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config


def test_a_complete_configuration_of_every_scheme_loads_again():
    for name in sorted(set(SCHEMES) - {"table", "trace"}):
        config = Config.from_dict({**SMALL, "links": name, "downlink": name})
        again = Config.from_dict(config.to_dict())
        assert again == config
        build_experiment(again).simulation.close()


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path):
    # Begun when such settings were still ignored, and stopped before its first checkpoint.
    start_run(Config.from_dict(SMALL), tmp_path / "run")
    for name in ("summary.json", "final.safetensors", "metrics.jsonl"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("[downlink]\n", "[downlink]\np = 0.01\n"))
    resume_run(tmp_path / "run")


def test_options_of_a_task_from_python():
    task = Quadratic([[1.0]], training=LocalTraining(local_steps=2))
    values = {"task": task, "links": "always"}
    for given, line in (
        ({"train": {"local_steps": 3}}, "train.local_steps is 3, but the task has its own, 2"),
        ({"clients": 2}, "clients is 2, but the task has its own, 1"),
        ({"device": "cuda"}, "device is 'cuda', but the task has its own, 'cpu'"),
        ({"data": "digits"}, "data.name is 'digits', but a task of the kind 'python'"),
    ):
        with pytest.raises(InputError) as caught:
            Config.from_dict({**values, **given})
        assert str(caught.value).startswith(line)
    Config.from_dict({**values, "clients": 1, "train": {"local_steps": 2}})
    with pytest.raises(InputError, match=r"^reported is 'disk', but fedavg"):
        simulate(task, "fedavg", "always", rounds=1, reported="disk")
    with pytest.raises(InputError, match=r"^rounds is 5, but"):
        simulate(task, "fedavg", np.ones((3, 1)), rounds=5)
    assert simulate(task, "fedavg", np.ones((3, 1)), rounds=3).metrics[-1].round == 3
    assert simulate(task, "fedavg", np.ones((3, 1))).metrics[-1].round == 3
    # Also the number that a run has without a table.
    with pytest.raises(InputError, match=r"^rounds is 500, but the links are a table of 3 rounds"):
        simulate(task, "fedavg", np.ones((3, 1)), rounds=500)


def test_the_default_alpha_for_clients_of_their_own(tmp_path: Path):
    values = {"data": "synthetic", "clients": 4, "rounds": 1, "links": {"name": "always"}}
    with pytest.raises(InputError, match=r"^data.alpha is 0.1, but should be left out: synthetic"):
        build_experiment(Config.from_dict({**values, "data": {"name": "synthetic", "alpha": 0.1}}))
    # Of a file, which another data set on the command line does not read, it is dropped.
    file = tmp_path / "run.toml"
    file.write_text(Config.from_dict(SMALL).to_toml())
    assert "alpha = 0.1" in file.read_text()
    given = configuration_values(file, {"data.name": "synthetic"})
    build_experiment(Config.from_dict(given)).simulation.close()
    with pytest.raises(InputError, match=r"^data.alpha is 0.1, but should be left out: synthetic"):
        build_experiment(
            Config.from_dict(
                configuration_values(file, {"data.name": "synthetic", "data.alpha": 0.1})
            )
        )


def test_what_a_run_wrote_can_be_used_again_with_another_setting(tmp_path: Path):
    for given, changed in (
        ({}, "links.p=0.5"),
        ({}, "train.schedule=cosine"),
        ({"links": "group"}, "links.late=0.5"),
        ({"aggregation": "trimmed_mean"}, "aggregation=mean"),
        ({"train": {"schedule": "cosine"}}, "train.schedule=constant"),
    ):
        file = tmp_path / "run.toml"
        file.write_text(Config.from_dict({**SMALL, **given}).to_toml())
        assert not Config.from_dict(configuration_values(file, {}, [changed])).unused


def test_a_comparison_writes_down_no_rounds_that_a_table_replaces():
    plan = plan_comparison({**SMALL, "algorithms": ["fedavg:train.schedule=cosine"]})
    text, _ = plan.self_contained()
    again = plan_comparison(tomllib.loads(text))
    assert again.checked("fedavg:train.schedule=cosine").train.schedule == "cosine"
    rounds = {key: value for key, value in SMALL.items() if key != "rounds"}
    text, _ = plan_comparison({**rounds, "algorithms": ["fedavg"]}).self_contained()
    assert "rounds" not in tomllib.loads(text)


def test_a_comparison_needs_one_algorithm_that_reads_a_setting():
    shared = {**SMALL, "reported": "disk", "seeds": [0]}
    assert plan_comparison({**shared, "algorithms": ["fedavg", "fedpbc"]}).seeds == [0]
    with pytest.raises(InputError, match=r"^reported is 'disk', but fedavg keeps no last reports"):
        plan_comparison({**shared, "algorithms": ["fedavg", "mifa"]})
    with pytest.raises(InputError, match=r"^downlink.p is 0.5, but downlink 'always'"):
        plan_comparison({**SMALL, "downlink": {"p": 0.5}})
    with pytest.raises(InputError, match=r"^links.p is 0.5, but links 'always'"):
        plan_comparison({**SMALL, "links": {"name": "always", "p": 0.5}})
    task, two = Quadratic([[1.0]]), ["fedavg", "fedpbc"]
    result = compare(lambda seed: task, two, [0], links="always", rounds=1, reported="disk")
    assert not result.failed
    with pytest.raises(InputError, match=r"^reported is 'disk', but fedavg keeps no last reports"):
        compare(lambda seed: task, two[:1], [0], links="always", rounds=1, reported="disk")


REPLACED = [
    (
        ["algorithm.name=fedau", "algorithm.cutoff=9", "algorithm.name=mifa"],
        "algorithm.cutoff is 9",
    ),
    (["links.gamma=0.2", "links=markov"], "links.gamma is 0.2, but a later '--set links' replaces"),
    (["links.p=0.2", "links.name=always"], "links.p is 0.2, but a later '--set links' replaces it"),
    (["algorithms.fedau.cutoff=2", "algorithms=[]"], "algorithms.fedau.cutoff is 2, but a later"),
]


@pytest.mark.parametrize(("assignments", "line"), REPLACED)
def test_a_setting_that_a_later_one_replaces(assignments, line):
    with pytest.raises(InputError) as caught:
        configuration_values(None, {}, assignments)
    assert str(caught.value).startswith(line)


def test_a_trace_that_a_later_setting_replaces(tmp_path: Path):
    trace = tmp_path / "trace.csv"
    trace.write_text("client,online_from_s,online_until_s\na,0,9\n")
    for assignment in ("links.name=bernoulli", "links=always", "links.file=b.csv"):
        with pytest.raises(InputError, match=r"^--trace is .*, but should be left out"):
            configuration_values(None, {}, [assignment], trace=trace)
    given = ["links.round_seconds=5"]
    assert configuration_values(None, {}, given, trace=trace)["links"]["round_seconds"] == 5


def test_another_scheme_on_the_command_line_drops_the_probabilities_of_the_file(tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text('[links]\nname = "bernoulli"\np = 0.5\n')
    assert configuration_values(file, {"links.name": "always"})["links"] == {"name": "always"}
    kept = configuration_values(file, {"links.name": "markov"})["links"]
    assert kept == {"name": "markov", "p": 0.5}


def test_on_the_command_line(tmp_path: Path):
    check = write_check(tmp_path / "given", clients=4)
    for given, line in (
        (["--data", "digits"], "data.name is 'digits', but a task of the kind 'quadratic'"),
        (["--model", "mlp"], "model.name is 'mlp', but a task of the kind 'quadratic'"),
        (["--set", "data.alpha=1"], "data.alpha is 1, but a task of the kind 'quadratic'"),
        (["--set", "links.p=0.5"], "links.p is 0.5, but links 'table' does not use it"),
        (["--batch-size", 4], "train.batch_size is 4, but a quadratic task has no samples"),
    ):
        line_given = refused(fedpbc("run", check, *given, "--out", tmp_path / "run"))
        assert line_given.startswith(line)
        assert not (tmp_path / "run").exists()


THEORY = [
    (["--p", 0.5, "--data", "digits"], "data.name is 'digits', but 'theory' does not use it"),
    (["--links", "bernoulli", "--set", "links.p=0.5", "--set", "engine=pool"], "engine is 'pool'"),
    (["--links", "bernoulli", "--set", "links.p=0.5", "--set", "algorithm=mifa"], "algorithm is"),
    (["--links", "always", "--p", 0.5], "links.p is 0.5, but links 'always' does not use it"),
    (["--p", 0.5, "--set", "links.delta=0.02"], "links.delta is 0.02, but it is only for drawing"),
]


@pytest.mark.parametrize(("given", "line"), THEORY)
def test_options_of_the_theory(given, line):
    assert refused(fedpbc("theory", *given)).startswith(line)
