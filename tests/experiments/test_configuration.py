from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import ALGORITHMS, SCHEMES, Config, InputError
from fedpbc.experiments.config_file import read_toml
from fedpbc.experiments.configuration import identity
from fedpbc.experiments.overrides import parse_value
from fedpbc.experiments.plugins import load_plugin
from fedpbc.links.probabilities import ProbabilityOptions
from fedpbc.options import options_of
from tests.commandline import DIGITS, assert_same_run, ran, write_check


def test_defaults_are_the_papers():
    config = Config.from_dict({})
    assert config.algorithm == {"name": "fedpbc"}
    assert config.links["name"] == "bernoulli_varying"
    assert {k: config.links[k] for k in ("gamma", "period")} == {"gamma": 0.4, "period": 40.0}
    drawn = ProbabilityOptions()
    assert (drawn.p, drawn.sigma, drawn.delta) == (None, 10.0, 0.02)
    assert config.downlink["name"] == "always"
    assert config.data.name == "fashion"
    assert config.data.alpha == 0.1
    assert config.train.local_steps == 5
    assert config.train.batch_size == 16
    assert config.train.learning_rate == 0.05
    assert config.train.global_learning_rate == 1
    assert config.train.decay is True
    assert config.train.optimizer == "sgd"
    assert config.general.seed == 0
    assert config.general.views == ["server", "averaged", "mean", "reported", "corrected"]


@pytest.mark.parametrize("name", ["fedpbc", "fedau", "f3ast", "mifa", "fedawe"])
def test_a_section_may_be_given_by_its_name(name):
    short = Config.from_dict({"algorithm": name, "links": "markov", "data": "digits"})
    long = Config.from_dict(
        {"algorithm": {"name": name}, "links": {"name": "markov"}, "data": {"name": "digits"}}
    )
    assert short == long
    assert short.algorithm["name"] == name


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_option_of_every_algorithm_is_written_down(name):
    written = Config.from_dict({"algorithm": name}).algorithm
    assert written.keys() == {"name", *options_of(ALGORITHMS[name].__init__)}


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - {"table", "trace"}))
def test_every_option_of_every_scheme_is_written_down(name):
    written = Config.from_dict({"links": name, "downlink": name})
    expected = {"name", *SCHEMES[name].options}
    assert written.links.keys() == written.downlink.keys() == expected


def test_what_is_written_reads_back_the_same():
    config = Config.from_dict(
        {
            "algorithm": {"name": "f3ast", "cap": 3},
            "rounds": 7,
            "views": ["averaged"],
            "links": {"name": "cyclic", "cycle": 11, "p": [0.25, 0.5]},
            "downlink": {"name": "bernoulli", "p": 0.5},
            "train": {"optimizer": "adam", "learning_rate": 1e-5},
            "data": {"name": "digits", "alpha": 3},
            "model": "softmax",
        }
    )
    again = Config.from_dict(tomllib.loads(config.to_toml()))
    assert again == config
    assert again.data.alpha == 3.0


numbers = st.integers(1, 10**6)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "rounds": numbers,
            "seed": st.integers(0, 2**62),
            "clients": numbers,
            "evaluate_every": numbers,
            "train": st.fixed_dictionaries(
                {},
                optional={
                    "local_steps": numbers,
                    "learning_rate": st.floats(1e-300, 1e300),
                    "decay": st.booleans(),
                    "proximal": st.floats(0, 1e10),
                },
            ),
            "links": st.fixed_dictionaries(
                {"name": st.sampled_from(["bernoulli_varying", "markov_varying"])},
                optional={"gamma": st.floats(0, 1), "delta": st.floats(0, 1)},
            ),
        },
    )
)
def test_any_configuration_survives_the_file(options):
    config = Config.from_dict(options)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config


def test_options_that_a_later_version_added_identify_a_run_unless_they_are_the_defaults():
    before = {"rounds": 5, "algorithm": {"name": "mifa", "rescale": True}}
    now = {"name": "mifa", "rescale": True, "over": "all", "memory": "server"}
    assert identity({"rounds": 5, "algorithm": now}) == before
    other = identity({"algorithm": {**now, "over": "heard"}})["algorithm"]
    assert other == {"name": "mifa", "rescale": True, "over": "heard"}
    for name in ("fedpbc", "fedstale", "not_registered"):
        table = {"name": name, "beta": 0.5, "over": "all"}
        assert identity({"algorithm": table}) == {"algorithm": table}


def test_targets_make_a_task_quadratic():
    assert Config.from_dict({"task": {"targets": "a.npy"}}).task.name == "quadratic"


def test_views_that_an_algorithm_lacks_are_left_out():
    config = Config.from_dict({"algorithm": "fedavg", "views": ["mean", "server"]})
    assert config.general.views == ["server"]


def test_the_view_to_deploy_is_no_part_of_what_identifies_a_run():
    values = {"algorithm": "fedavg", "deploy_view": "averaged"}
    config = Config.from_dict(values)
    assert config.to_dict()["deploy_view"] == "averaged"
    assert identity(config.to_dict()) == identity(
        Config.from_dict({"algorithm": "fedavg"}).to_dict()
    )


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"deploy_view": "reported"},
            "'reported', but should be among server, averaged for fedavg",
        ),
        ({"deploy_view": "mean"}, "'mean', but should be among server, averaged for fedavg"),
        (
            {"deploy_view": "averaged", "views": ["server"]},
            "'averaged', but should be among server for fedavg",
        ),
        (
            {"algorithm": "fedpbc", "deploy_view": "server", "views": ["mean"]},
            "'server', but should be left out: none of the evaluated views could be deployed",
        ),
        ({"deploy_view": 3}, "deploy_view is 3"),
    ],
)
def test_a_view_that_cannot_be_deployed_is_refused(values, line):
    with pytest.raises(InputError) as error:
        Config.from_dict({"algorithm": "fedavg", **values})
    assert line in str(error.value)


def test_files_are_looked_for_beside_the_configuration_then_here(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for place in (beside, here):
        place.mkdir()
    for file in (beside / "both.npy", here / "both.npy", here / "only_here.npy"):
        np.save(file, np.ones(2))
    config = beside / "a.toml"
    config.write_text(
        'plugins = ["mine.py"]\n[task]\ntargets = "both.npy"\n'
        '[links]\nfile = "only_here.npy"\np = "/abs/p.npy"\n[data]\ndir = "nowhere"\n'
    )
    monkeypatch.chdir(here)
    given = read_toml(config)
    assert given["task"]["targets"] == str(beside / "both.npy")
    assert given["links"]["file"] == str(here / "only_here.npy")
    assert given["links"]["p"] == "/abs/p.npy"
    assert given["data"]["dir"] == str(beside / "nowhere")
    assert given["plugins"] == [str(beside / "mine.py")]


def config_of(tmp_path: Path, text: str, *options: object) -> dict:
    """What a run's folder says was set."""
    file = tmp_path / "given.toml"
    file.write_text(text)
    ran("run", file, *DIGITS, "--rounds", 1, *options, "--out", tmp_path / "run")
    return tomllib.loads((tmp_path / "run" / "config.toml").read_text())


def test_options_outrank_the_file_and_settings_outrank_options(tmp_path):
    text = 'algorithm = "mifa"\nseed = 1\nevaluate_every = 7\n[train]\nlocal_steps = 2\n'
    options = ["--seed", 2, "--local-steps", 3, "--algorithm", "fedau"]
    settings = ["--set", "seed=3", "--set", "train.local_steps=4", "--set", "algorithm.cutoff=9"]
    found = config_of(tmp_path, text, *options, *settings)
    assert found["seed"] == 3
    assert found["train"]["local_steps"] == 4
    assert found["algorithm"] == {"name": "fedau", "cutoff": 9, "over": "all"}
    assert found["evaluate_every"] == 7


def test_of_two_settings_the_later_holds(tmp_path):
    found = config_of(tmp_path, "", "--set", "links.gamma=0.1", "--set", "links.gamma=0.3")
    assert found["links"]["gamma"] == 0.3


def test_naming_another_drops_the_options_of_the_old_one(tmp_path):
    text = '[algorithm]\nname = "fedau"\ncutoff = 9\n[links]\nname = "cyclic"\ncycle = 7\n'
    found = config_of(tmp_path, text, "--algorithm", "mifa", "--links", "bernoulli")
    assert found["algorithm"] == {
        "name": "mifa",
        "rescale": False,
        "over": "all",
        "memory": "server",
    }
    assert found["links"]["name"] == "bernoulli"
    assert "cycle" not in found["links"]


def test_naming_the_same_keeps_its_options(tmp_path):
    text = '[algorithm]\nname = "fedau"\ncutoff = 9\n[links]\nname = "cyclic"\ncycle = 7\n'
    found = config_of(tmp_path, text, "--algorithm", "fedau", "--links", "cyclic")
    assert found["algorithm"]["cutoff"] == 9
    assert found["links"]["cycle"] == 7


def test_naming_other_data_keeps_how_it_is_shared_out(tmp_path):
    text = '[data]\nname = "fashion"\nalpha = 0.7\ntrain_samples = 50\n'
    found = config_of(tmp_path, text)
    assert found["data"]["name"] == "digits"
    assert found["data"]["alpha"] == 0.7
    assert found["data"]["train_samples"] == 50


def test_naming_other_links_keeps_the_given_probabilities(tmp_path):
    text = '[links]\nname = "bernoulli"\np = 0.5\n'
    found = config_of(tmp_path, text, "--links", "markov")
    assert found["links"]["name"] == "markov"
    assert found["links"]["p"] == 0.5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("fedau", "fedau"),
        ("'fedau'", "fedau"),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("a/b.npy", "a/b.npy"),
        ("", ""),
        ("{a = 1}", {"a": 1}),
        ("2024-01-01x", "2024-01-01x"),
    ],
)
def test_a_setting_is_a_toml_value_or_else_a_string(text, value):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_the_folder_keeps_copies_of_the_files(tmp_path):
    check = write_check(tmp_path / "given")
    np.save(tmp_path / "given" / "down.npy", np.ones((60, 12)))
    down = ["--set", "downlink.name=table", "--set", f"downlink.file={tmp_path}/given/down.npy"]
    run = tmp_path / "run"
    ran("run", check, *down, "--out", run)
    written = tomllib.loads((run / "config.toml").read_text())
    assert written["task"]["targets"] == "inputs/task-targets.npy"
    assert written["links"]["file"] == "inputs/links-file.npy"
    assert written["downlink"]["file"] == "inputs/downlink-file.npy"
    for copy, original in (
        ("task-targets", "targets"),
        ("links-file", "timetable"),
        ("downlink-file", "down"),
    ):
        mine, theirs = run / "inputs" / f"{copy}.npy", tmp_path / "given" / f"{original}.npy"
        assert mine.read_bytes() == theirs.read_bytes()


def test_files_of_the_same_name_do_not_overwrite_each_other(tmp_path):
    # The uplinks' table and the downlinks' probabilities, both called a.npy.
    check = write_check(tmp_path / "given", clients=4)
    (tmp_path / "p").mkdir()
    (tmp_path / "given" / "timetable.npy").rename(tmp_path / "given" / "a.npy")
    np.save(tmp_path / "p" / "a.npy", np.full(4, 0.5))
    files = ["--set", f"links.file={tmp_path}/given/a.npy", "--downlink", "bernoulli"]
    files += ["--set", f"downlink.p={tmp_path}/p/a.npy"]
    ran("run", check, *files, "--out", tmp_path / "one")
    ran("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_a_run_of_pictures_can_be_made_again_from_its_configuration(tmp_path):
    options = ["--algorithm", "f3ast", "--set", "algorithm.cap=2", "--downlink", "markov"]
    options += ["--set", "links.p=0.5", "--set", "data.alpha=1", "--model", "softmax", "--seed", 4]
    ran("run", *DIGITS, "--rounds", 12, *options, "--out", tmp_path / "one")
    ran("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert_same_run(tmp_path / "one", tmp_path / "two")
    one, two = (tmp_path / n / "config.toml" for n in ("one", "two"))
    assert one.read_text() == two.read_text()


def test_a_plugin_says_what_is_wrong_with_it_in_one_line(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("import nothing_of_this_name\n")
    with pytest.raises(InputError, match="importable \\(ModuleNotFoundError") as caught:
        load_plugin(str(file))
    assert "\n" not in str(caught.value)


def test_settings_of_a_later_version_are_written_only_where_they_matter():
    values = Config.from_dict({}).to_dict()
    assert "running_statistics" not in values["task"]
    assert not {"weight_decay", "schedule", "schedule_rounds"} & set(values["train"])
    given = {"weight_decay": 0.1, "schedule": "cosine", "schedule_rounds": 7}
    train = Config.from_dict({"train": given}).to_dict()["train"]
    assert {name: train[name] for name in given} == given
    assert Config.from_dict(Config.from_dict({"train": given}).to_dict()).train.schedule == "cosine"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"seeds": [0], "algorithms": {"fedau": {}}},
            "algorithms is for comparisons: name a configuration of one algorithm, such as "
            "tuned-fedau.toml",
        ),
        ({"seeds": "0-4"}, "seeds is for 'fedpbc compare': leave it out"),
        # Whether or not the number of clients, which an app needs, is given.
        (
            {"task": {"app": "app.py"}, "data": "digits"},
            "data.name is 'digits', but a task of the kind 'app' does not use it: leave it out",
        ),
        (
            {"task": {"app": "app.py"}, "data": "digits", "clients": 3},
            "data.name is 'digits', but a task of the kind 'app' does not use it: leave it out",
        ),
        (
            {"task": {"app": "app.py"}},
            "clients is missing: say for how many clients the app has data, as in --clients 20",
        ),
    ],
)
def test_what_does_not_belong_to_the_run_is_named_first(values, line):
    with pytest.raises(InputError) as caught:
        Config.from_dict(values)
    assert str(caught.value) == line
    if "data" in values and "clients" not in values:  # As a search checks it.
        with pytest.raises(InputError) as caught:
            Config.from_dict(values, lenient=True)
        assert str(caught.value) == line
