"""Simulating from Python: one's own task, module, algorithm and links."""

from __future__ import annotations

import textwrap
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import fedpbc as package
from fedpbc import (
    ALGORITHMS,
    SCHEMES,
    Config,
    InputError,
    LocalTraining,
    Quadratic,
    Supervised,
    Timetable,
    load_view,
    simulate,
)
from fedpbc.experiments.build import build_experiment
from fedpbc.simulation.build import draw_timetable
from tests.commandline import DIGITS, assert_same_run, content, fedpbc, metrics, ran, refused
from tests.small_runs import mlp, network, samples

TARGETS = np.random.default_rng(2).normal(size=(5, 3))
P = {"name": "bernoulli", "p": 0.5}


def quadratic(**training: object) -> Quadratic:
    return Quadratic(TARGETS, training=LocalTraining(**training))


def equal(one, other) -> bool:
    return one.models.keys() == other.models.keys() and all(
        torch.equal(one.models[v], other.models[v]) for v in one.models
    )


def test_a_module_of_ones_own_learns():
    task = network(learning_rate=0.3)
    result = simulate(task, "fedavg", "always", rounds=60)
    assert [m.round for m in result.metrics] == [10, 20, 30, 40, 50, 60]
    assert result.accuracy() > 0.9
    assert result.accuracy() == result.metrics[-1].views["server"].test_accuracy
    assert result.accuracy("averaged") == result.metrics[-1].views["averaged"].test_accuracy
    assert result.engine.split(":")[0] in ("serial", "stacked")


def test_the_accuracy_is_that_of_the_papers_view():
    result = simulate(network(), "fedpbc", {"name": "bernoulli", "p": 0.3}, rounds=10)
    assert result.accuracy() == result.metrics[-1].views["mean"].test_accuracy
    assert result.accuracy("server") == result.metrics[-1].views["server"].test_accuracy


def test_the_models_go_into_a_module():
    result = simulate(network(), "fedpbc", P, rounds=10)
    x, y = samples()
    for view, judged in result.metrics[-1].views.items():
        module = mlp()
        result.load_into(module, view)
        assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), result.models[view])
        with torch.no_grad():
            right = (module(x).argmax(1) == y).double().mean()
        assert float(right) == pytest.approx(judged.test_accuracy)


def of_every_size(validation: float) -> Supervised:
    data, ends = samples(600), np.cumsum([20, 31, 7, 90, 55, 12, 201])
    partition = np.split(np.random.default_rng(1).permutation(600), ends)
    return Supervised(mlp(), data, data, partition=partition, validation=validation)


@pytest.mark.parametrize(
    "links",
    [
        {"name": "bernoulli", "delta": 0.001},
        {"name": "by_volume", "exponent": 2.0},
        {"name": "label_cyclic", "day": 12},
        {"name": "group", "assign": "class", "groups": 2},
    ],
    ids=lambda links: links["name"],
)
def test_links_do_not_depend_on_what_is_held_out(links):
    """Else a search is on other links than the comparison that it is for."""
    whole, searched = (draw_timetable(links, of_every_size(v), 200, seed=3) for v in (0.0, 0.3))
    assert searched.fingerprint() == whole.fingerprint()
    assert next(searched.probabilities()).tolist() == next(whole.probabilities()).tolist()


def test_views_that_are_not_there_are_said():
    result = simulate(network(), "fedavg", "always", rounds=1)
    with pytest.raises(InputError, match="view is 'mean'"):
        result.accuracy("mean")
    with pytest.raises(InputError, match="view is 'mean'"):
        result.load_into(mlp(), "mean")


def test_a_task_without_classes_has_no_accuracy():
    with pytest.raises(InputError, match="has no classes"):
        simulate(quadratic(), "fedavg", "always", rounds=1).accuracy()


def test_whoever_watches_is_told_every_round():
    seen = []
    simulate(
        quadratic(),
        "fedavg",
        "always",
        rounds=7,
        evaluate_every=3,
        on_round=lambda t, found: seen.append((t, found and found.round)),
    )
    assert seen == [(1, None), (2, None), (3, 3), (4, None), (5, None), (6, 6), (7, 7)]


def unequal_network() -> Supervised:
    """Three clients with 20, 5 and 80 samples, mostly of classes 2, 0 and 1."""
    labels = torch.tensor([2] * 20 + [0] * 5 + [1] * 50 + [0] * 30)
    inputs = torch.randn(105, 4, generator=torch.Generator().manual_seed(0))
    parts = [np.arange(20), np.arange(20, 25), np.arange(25, 105)]
    data = inputs, labels
    training = LocalTraining(batch_size=4)
    return Supervised(nn.Linear(4, 3), data, data, partition=parts, training=training)


def test_links_see_what_the_clients_hold():
    task = unequal_network()
    table = draw_timetable("by_volume", task, 4, seed=0)
    assert next(table.probabilities()).tolist() == [0.5, 0.25, 1.0]
    table = draw_timetable({"name": "label_cyclic", "day": 3}, task, 3, seed=0)
    assert [table.active(t).tolist() for t in range(3)] == [[1], [2], [0]]
    # With two groups, classes 0 and 2 share one.
    links = {"name": "group", "p": 1.0, "assign": "class", "groups": 2, "mean_up": 3.0}
    up = draw_timetable(links, task, 200, seed=0).block(200, 3)
    assert (up[:, 0] == up[:, 1]).all()
    assert (up[:, 0] != up[:, 2]).any()


def test_a_trace_from_python(tmp_path):
    """Its file says how long a round is, as it does on the command line; its end is said."""
    log = tmp_path / "log.csv"
    log.write_text("# round_seconds = 10\nclient,online_from_s,online_until_s\na,0,65\nb,5,35\n")
    links, task = {"name": "trace", "file": str(log)}, Quadratic(np.eye(2))
    result = simulate(task, "fedavg", links, rounds=6)
    assert result.cost["uploads"] == 6 + 3
    for options in ({}, {"out": tmp_path / "run"}):
        with pytest.warns(RuntimeWarning, match=r"^the trace ends after 6 of 9 rounds") as warned:
            simulate(task, "fedavg", links, rounds=9, **options)
        assert len(warned) == 1
    with pytest.warns(RuntimeWarning, match=r"^the trace ends after 6 of 9 rounds"):
        compared = package.compare(
            lambda seed: Quadratic(np.eye(2), seed=seed),
            ["fedavg"],
            [0],
            links=links,
            rounds=9,
            out=tmp_path / "runs",
        )
    assert "the trace ends after 6 of 9" in compared.report(tmp_path / "page.html").read_text()


def test_links_that_need_data_which_a_task_does_not_have():
    for section in ("links", "downlink"):
        for name, data in (("label_cyclic", "classes"), ("by_volume", "sample counts")):
            with pytest.raises(InputError) as caught:
                simulate(quadratic(), "fedavg", **{"links": "always", section: name}, rounds=2)
            assert str(caught.value) == (
                f"{section} is '{name}', but should be a scheme that needs no {data}: "
                f"this task has none, and {section}.p cannot replace them"
            )
    grouped = {"name": "group", "p": 0.5, "assign": "class"}
    with pytest.raises(InputError, match=r"^links\.assign is 'class', but .* has no classes$"):
        simulate(quadratic(), "fedavg", grouped, rounds=2)
    assert simulate(quadratic(), "fedavg", {**grouped, "assign": "random"}, rounds=2)


def test_data_is_not_looked_at_for_links_that_do_not_read_it():
    class Silent(Quadratic):
        @property
        def class_shares(self):
            raise AssertionError("not to be computed")

        samples = class_shares

    for links in (P, {"name": "group", "p": 0.5}, {"name": "staircase", "p": 0.5}):
        draw_timetable(links, Silent(TARGETS), 3, seed=0)


FURTHER = {
    "staircase": {"low": 0.5, "period": 4.0, "p": 0.6},
    "interleaved_sine": {"cut": 0.4, "period": 6.0, "p": [0.9, 0.5, 0.8]},
    "label_cyclic": {"day": 5, "outside": 0.3},
    "by_volume": {"favours": "small", "exponent": 0.25},
    "group": {"p": 0.8, "mean_up": 4.0, "mean_down": 2.0, "away": 0.1, "late": 0.5, "leave": 0.01},
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_links_are_the_same_for_every_algorithm_engine_and_direction(name):
    task, links = unequal_network(), {"name": name, **FURTHER[name]}
    expected = draw_timetable(links, task, 12, seed=3).fingerprint()
    fingerprints = {
        build_experiment(
            Config.from_dict(
                {"task": task, "algorithm": algorithm, "links": links, "engine": engine}
                | {"rounds": 12, "seed": 3}
            )
        ).simulation.uplink.fingerprint()
        for algorithm in ("fedpbc", "fedavg_known")
        for engine in ("serial", "stacked")
    }
    assert fingerprints == {expected}
    result = simulate(task, "fedavg_known", links, downlink=links, rounds=12, seed=3)
    assert result.metrics[-1].round == 12


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedavg_known", "mifa"])
def test_links_can_be_given_in_every_way(algorithm):
    up = np.random.default_rng(4).random((15, 5)) < 0.4
    table = simulate(quadratic(), algorithm, up)
    assert table.metrics[-1].round == 15
    from fedpbc.links import from_table

    timetable = from_table(up)
    assert isinstance(timetable, Timetable)
    assert equal(simulate(quadratic(), algorithm, timetable), table)
    named = simulate(quadratic(), algorithm, {"name": "markov", "p": 0.5}, rounds=15)
    listed = simulate(quadratic(), algorithm, {"name": "markov", "p": [0.5] * 5}, rounds=15)
    assert equal(named, listed)
    function = simulate(quadratic(), algorithm, SCHEMES["always"].rows, rounds=15)
    assert equal(simulate(quadratic(), algorithm, "always", rounds=15), function)


def test_the_seed_is_the_tasks_unless_given():
    tasks = [Quadratic(TARGETS, seed=3), Quadratic(TARGETS, seed=4)]
    a, b = (simulate(task, "fedavg", P, rounds=20) for task in tasks)
    assert not equal(a, b)
    assert equal(simulate(tasks[1], "fedavg", P, rounds=20, seed=3), a)


def test_options_reach_the_algorithm_and_the_downlink():
    plain = simulate(quadratic(), "fedau", P, rounds=30)
    assert not equal(simulate(quadratic(), {"name": "fedau", "cutoff": 1}, P, rounds=30), plain)
    assert not equal(simulate(quadratic(), "fedau", P, rounds=30, global_lr=0.5), plain)
    assert not equal(simulate(quadratic(), "fedau", P, rounds=30, downlink=P), plain)
    assert equal(simulate(quadratic(), ALGORITHMS["fedau"], P, rounds=30), plain)


def test_only_the_views_asked_for():
    result = simulate(quadratic(), "fedpbc", P, rounds=5, views=["reported"])
    assert result.models.keys() == result.metrics[-1].views.keys() == {"reported"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"algorithm": "fedpcb"}, "algorithm is 'fedpcb'"),
        ({"algorithm": {"name": "fedau", "cutof": 3}}, r"algorithm\.cutof is unknown"),
        ({"algorithm": {"name": "fedau", "cutoff": 0}}, r"algorithm\.cutoff is 0"),
        ({"algorithm": 3}, "algorithm is 3"),
        ({"links": "nothing"}, "links is 'nothing'"),
        ({"links": {"name": "bernoulli", "p": 2.0}}, r"links\.p is 2"),
        ({"links": {"name": "bernoulli", "q": 0.5}}, r"links\.q is unknown"),
        ({"links": "bernoulli"}, r"links\.p is missing"),
        ({"links": 3}, "links is 3"),
        ({"links": np.ones((5, 4), dtype=bool)}, "links is for 4 clients"),
        ({"links": np.full((5, 5), 2)}, "table"),
        ({"downlink": "nothing"}, "downlink is 'nothing'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"global_lr": 0.0}, "global_lr is 0"),
        ({"global_lr": float("nan")}, "global_lr is nan"),
        ({"engine": "gpu"}, "engine is 'gpu'"),
        ({"views": ["servr"]}, "views is 'servr'"),
        ({"views": []}, "views is "),
    ],
)
def test_wrong_input_from_python(tmp_path, options, line):
    out = tmp_path / "run"
    given = {"algorithm": "fedavg", "links": "always", "rounds": 5, "out": out, **options}
    with pytest.raises(InputError, match=line):
        simulate(quadratic(), **given)
    assert not out.exists()


@pytest.mark.parametrize(
    ("training", "line"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'"),
        ({"momentum": 1.0}, "momentum is 1"),
        ({"proximal": -1.0}, "proximal is -1"),
    ],
)
def test_wrong_training_from_python(training, line):
    with pytest.raises(InputError, match=line):
        LocalTraining(**training)


def test_a_run_from_python_leaves_a_folder(tmp_path):
    task = network()
    result = simulate(task, "fedawe", P, rounds=12, out=tmp_path / "run")
    assert [line["round"] for line in metrics(tmp_path / "run")] == [10, 12]
    assert [m.round for m in result.metrics] == [10, 12]
    named = load_view(tmp_path / "run", "reported")
    assert named.keys() == dict(mlp().named_parameters()).keys()
    assert torch.equal(torch.cat([v.flatten() for v in named.values()]), result.models["reported"])
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["task"] == {"name": "python"}
    assert config["algorithm"]["name"] == "fedawe"
    assert config["links"] == P
    without = simulate(network(), "fedawe", P, rounds=12)
    assert equal(without, result)
    assert [v for m in without.metrics for v in m.views.items()] == [
        v for m in result.metrics for v in m.views.items()
    ]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        simulate(quadratic(), "fedavg", "always", rounds=2, out=tmp_path)
    assert list(content(tmp_path)) == ["thesis.tex"]


def test_every_way_of_giving_links_can_be_kept_in_a_folder(tmp_path):
    ways = [
        np.ones((4, 5), dtype=bool),
        SCHEMES["always"].rows,
        {"name": "bernoulli", "p": np.full(5, 0.5)},
        {"name": "bernoulli", "p": np.float64(0.5)},
        {"name": "cyclic", "p": 0.5, "cycle": 2},
    ]
    for k, links in enumerate(ways):
        simulate(quadratic(), "fedavg", links, rounds=4, out=tmp_path / str(k))
        assert (tmp_path / str(k) / "summary.json").is_file()


def test_data_of_ones_own_with_a_loss_of_ones_own():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    y = x @ torch.tensor([[1.0], [2.0], [3.0]])
    task = Supervised(
        nn.Linear(3, 1), (x, y), (x, y), clients=6, loss=nn.functional.mse_loss,
        training=LocalTraining(learning_rate=0.1, decay=False, batch_size=8),
    )  # fmt: skip
    result = simulate(task, "fedavg", {"name": "bernoulli", "p": 0.7}, rounds=60)
    assert result.metrics[-1].views["server"].test_loss < 1e-3
    assert result.metrics[-1].views["server"].test_accuracy is None


PLUGIN = textwrap.dedent(
    '''
    import numpy as np
    from fedpbc import Algorithm, advance, link_scheme, mean, register_algorithm

    @register_algorithm
    class Cautious(Algorithm):
        """FedAvg that goes a part of the way, less and less."""

        name = "cautious"

        def __init__(self, fleet, *, part: float = 0.5):
            super().__init__(fleet)
            self.part = part
            self.heard = {}
            self.steps = 0

        def aggregate(self, round, updates):
            for update in updates:
                self.heard[update.client] = self.heard.get(update.client, 0) + 1
            if updates:
                self.steps += 1
                self.x = mean(advance(self.x, u, self.part / self.steps**0.5) for u in updates)

    @link_scheme
    def by_turns(setting, *, at_once: int = 2):
        """So many clients at once, by turns."""
        for t in range(setting.rounds):
            up = np.zeros(setting.clients, dtype=bool)
            up[(np.arange(at_once) + t * at_once) % setting.clients] = True
            yield up
    '''
)


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    yield file
    ALGORITHMS.pop("cautious", None)
    SCHEMES.pop("by_turns", None)


def test_an_algorithm_and_links_from_a_file(plugin, tmp_path):
    run = tmp_path / "run"
    given = ["--algorithm", "cautious", "--links", "by_turns", "--set", "links.at_once=3"]
    refused(fedpbc("run", *DIGITS, "--rounds", 4, *given, "--out", run))
    ran("run", *DIGITS, "--rounds", 4, *given, "--plugin", plugin, "--out", run)
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["plugins"] == ["inputs/plugin-0.py"]
    assert config["algorithm"] == {"name": "cautious", "part": 0.5}
    assert (run / "inputs" / "plugin-0.py").read_text() == PLUGIN
    assert [line["active"] for line in metrics(run)] == [3]
    # Again, without the file and with nothing registered.
    plugin.unlink()
    ALGORITHMS.pop("cautious")
    SCHEMES.pop("by_turns")
    ran("run", run / "config.toml", "--out", tmp_path / "again")
    assert_same_run(run, tmp_path / "again")


def test_a_run_with_a_plugin_goes_on(plugin, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, _):
        if done == 7:
            raise Stop

    from fedpbc import Config, start_run
    from fedpbc.experiments.execution import Watcher

    given = {"data": "digits", "clients": 8, "rounds": 12, "checkpoint_every": 2}
    given |= {"algorithm": "cautious", "links": "by_turns", "plugins": [str(plugin)]}
    start_run(Config.from_dict(given), tmp_path / "whole")
    with pytest.raises(Stop):
        start_run(Config.from_dict(given), tmp_path / "run", watcher=Watcher(on_round=stop))
    plugin.unlink()
    ALGORITHMS.pop("cautious")
    SCHEMES.pop("by_turns")
    ran("resume", tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_an_algorithm_as_the_documentation_shows_it_keeps_the_models_type():
    class FedHalf(package.Algorithm):
        """FedAvg that only goes half the way."""

        name = "fedhalf"

        def aggregate(self, round, updates):
            if updates:
                self.x = package.mean(package.advance(self.x, u, 0.5) for u in updates)

    stacked = simulate(network(), FedHalf, P, rounds=6, engine="stacked")
    serial = simulate(network(), FedHalf, P, rounds=6, engine="serial")
    for result in (stacked, serial):
        assert {m.dtype for m in result.models.values()} == {torch.float32}


def test_two_plugins_of_the_same_file_name(tmp_path):
    for k in "ab":
        (tmp_path / k).mkdir()
        text = f"from fedpbc import ALGORITHMS, register_algorithm\n@register_algorithm\n\
class Own_{k}(ALGORITHMS['fedavg']):\n    '''Own.'''\n    name = 'own_{k}'\n"
        (tmp_path / k / "mine.py").write_text(text)
    files = ["--plugin", tmp_path / "a" / "mine.py", "--plugin", tmp_path / "b" / "mine.py"]
    try:
        run = tmp_path / "run"
        given = ["--algorithm", "own_a", "--rounds", 2, "--out", run]
        ran("run", *DIGITS, *given, *files)
        for name in ("own_a", "own_b"):
            ALGORITHMS.pop(name)
        ran("run", run / "config.toml", "--out", tmp_path / "again")
        assert_same_run(run, tmp_path / "again")
    finally:
        for name in ("own_a", "own_b"):
            ALGORITHMS.pop(name, None)


def test_a_plugin_is_compared_and_listed_too(plugin, tmp_path):
    given = ["--algorithms", "cautious,fedavg", "--seeds", 0, "--jobs", 1, "--links", "by_turns"]
    ran("compare", *DIGITS, "--rounds", 5, *given, "--plugin", plugin, "--out", tmp_path / "all")
    assert "| cautious |" in (tmp_path / "all" / "table.md").read_text()
    said = ran("list", "--plugin", plugin).out
    assert "FedAvg that goes a part of the way, less and less.  [part=0.5]" in said
    assert "So many clients at once, by turns.  [at_once=2]" in said


def test_what_a_checkpoint_cannot_hold_is_said_in_one_line(plugin, tmp_path):
    plugin.write_text(PLUGIN.replace("self.steps = 0", "self.steps = 0; self.odd = {1, 2}"))
    given = ["--algorithm", "cautious", "--plugin", plugin, "--set", "checkpoint_every=1"]
    line = refused(fedpbc("run", *DIGITS, "--rounds", 4, *given, "--out", tmp_path / "run"))
    assert "cannot hold a set" in line


def test_everything_is_there_under_one_name():
    assert package.simulate is simulate
