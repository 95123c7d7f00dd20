"""The sums behind a comparison, by hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedpbc import (
    PAPER_ALGORITHMS,
    Algorithm,
    Comparison,
    DivergedError,
    FedpbcError,
    InputError,
    LocalTraining,
    Quadratic,
    advance,
    compare,
    mean,
)
from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiments.comparison import Spread
from fedpbc.experiments.run_result import RunResult
from tests.scored_runs import run as scored_run


def evaluation(test: float, train: float = 0.5, loss: float = 1.0, per_class=(0.25, 0.75)) -> dict:
    return {
        "test_accuracy": test,
        "train_accuracy": train,
        "test_loss": loss,
        "train_loss": loss,
        "per_class": list(per_class),
    }


def line(round: int, uploads: int = 0, *, sent: int | None = None, **views: dict) -> dict:
    counted = {} if sent is None else {"bytes_up": sent, "bytes_down": 2 * sent}
    return {"round": round, "local_steps": 5 * round, "uploads": uploads, **counted, "views": views}


def test_a_mean_and_the_deviation_of_a_sample():
    spread = Spread.of([0.2, 0.4, 0.9])
    assert spread.mean == pytest.approx(0.5)
    # Divided by n − 1: √((0.09 + 0.01 + 0.16)/2).
    assert spread.deviation == pytest.approx(math.sqrt(0.13))
    assert str(spread) == "50.0 ± 36.1"
    assert str(Spread.of([0.123])) == "12.3"
    assert Spread.of([0.123]).deviation == 0


@pytest.mark.parametrize(
    ("rounds", "window"), [(4, 1), (10, 2), (50, 10), (499, 99), (500, 100), (4000, 100)]
)
def test_the_window_is_a_fifth_of_the_rounds_and_at_most_100(rounds, window):
    cells = [RunResult("fedavg", 0, 10, [line(rounds, server=evaluation(0.5))])]
    assert Comparison(cells).window == window


def test_only_evaluations_within_the_last_rounds_count():
    # 50 rounds, a window of 10: those after round 40 count, round 40 does not.
    found = {10: 0.9, 40: 0.8, 41: 0.1, 45: 0.2, 50: 0.6}
    lines = [line(t, server=evaluation(a, train=a / 2, loss=a * 3)) for t, a in found.items()]
    [row] = Comparison([RunResult("fedavg", 0, 10, lines)]).rows()
    assert row.test.mean == pytest.approx(0.3)
    assert row.train.mean == pytest.approx(0.15)
    assert row.loss.mean == pytest.approx(0.9)
    assert row.test.seeds == 1


def test_runs_of_different_length_have_windows_of_their_own():
    """The accuracy is t/rounds: the mean of the last fifth is (17 + … + 20)/80 and 241 to 300."""
    runs = [
        RunResult(
            "fedavg",
            0,
            10,
            [line(t, server=evaluation(t / rounds)) for t in range(1, rounds + 1)],
            label=f"fedavg:rounds={rounds}",
        )
        for rounds in (20, 300)
    ]
    short, long = Comparison(runs).rows()
    assert short.test.mean == pytest.approx(0.925)
    assert long.test.mean == pytest.approx(270.5 / 300)


def test_seeds_are_averaged_after_the_window():
    cells = []
    for seed, ends in enumerate([(0.1, 0.3), (0.5, 0.9)]):
        lines = [
            line(t, uploads=seed, server=evaluation(a)) for t, a in zip((9, 10), ends, strict=True)
        ]
        cells.append(RunResult("fedavg", seed, 10, lines))
    [row] = Comparison(cells).rows()
    assert row.test.mean == pytest.approx((0.2 + 0.7) / 2)
    assert row.test.deviation == pytest.approx(statistics.stdev([0.2, 0.7]))
    assert row.test.seeds == 2


def test_the_worst_class_is_found_in_each_evaluation():
    lines = [
        line(9, server=evaluation(0.5, per_class=(0.1, 0.9, None))),
        line(10, server=evaluation(0.5, per_class=(0.8, 0.3, 0.7))),
    ]
    [row] = Comparison([RunResult("fedavg", 0, 10, lines)]).rows()
    assert row.worst_class.mean == pytest.approx(0.2)


def test_the_best_view_is_one_that_a_server_could_have():
    views = {"server": 0.3, "averaged": 0.5, "mean": 0.9, "reported": 0.7, "corrected": 0.6}
    lines = [line(10, **{v: evaluation(a) for v, a in views.items()})]
    comparison = Comparison([RunResult("fedpbc", 0, 10, lines)])
    assert {r.view: r.best_deployable for r in comparison.rows()} == {
        "server": False,
        "averaged": False,
        "mean": False,
        "reported": True,
        "corrected": False,
    }
    assert comparison.best_deployable("fedpbc") == "reported"
    assert comparison.paper_view("fedpbc") == "mean"
    only = Comparison([RunResult("fedpbc", 0, 10, [line(10, mean=evaluation(0.9))])])
    assert only.best_deployable("fedpbc") is None


VALUES = {"server": 0.5, "averaged": 0.6, "mean": 0.9}


def deployed(views_by_seed, values=VALUES):
    """Return a comparison of FedPBC with a view to deploy for each seed."""
    runs = [scored_run("fedpbc", k, 0, views=values) for k in range(len(views_by_seed))]
    return Comparison(
        replace(run, deploy_view=view) for run, view in zip(runs, views_by_seed, strict=True)
    )


@pytest.mark.parametrize(
    ("views", "starred"),
    [
        (["server", "server"], "server"),  # chosen beforehand, although another one is higher
        (["averaged", "averaged"], "averaged"),
        ([None, None], "averaged"),
        (["server", "averaged"], "averaged"),  # contradictory
        (["server", None], "averaged"),
        (["reported", "reported"], "averaged"),  # was not evaluated
        (["mean", "mean"], "averaged"),  # no server has it
    ],
)
def test_a_view_that_was_chosen_beforehand_is_the_one_to_deploy(views, starred):
    comparison = deployed(views)
    assert comparison.best_deployable("fedpbc") == starred
    row = comparison.paired().row("fedpbc")
    assert (row.view, row.mean) == (starred, pytest.approx(VALUES[starred]))


def test_a_view_to_deploy_from_python():
    result = compare(
        lambda seed: Quadratic([[0.0], [9.0]], seed=seed),
        ["fedpbc", {"name": "fedpbc", "deploy_view": "averaged", "label": "averaged"}],
        seeds=[0],
        deploy_view="server",
        links="always",
        rounds=5,
    )
    assert {label: result.best_deployable(label) for label in result.labels} == {
        "fedpbc": "server",
        "averaged": "averaged",
    }


def test_limits_that_rule_out_the_chosen_view_leave_the_best_of_the_others():
    comparison = deployed(["server", "server"], {**VALUES, "reported": 0.7})

    def view(*names):
        return comparison.scores(lambda row: row.view in names).find("fedpbc").view

    assert view("server", "averaged", "reported") == "server"
    assert view("averaged", "reported") == "reported"


def test_without_classes_the_least_loss_is_best():
    none = {"test_accuracy": None, "train_accuracy": None, "per_class": None}
    views = {"server": {**none, "test_loss": 2.0}, "averaged": {**none, "test_loss": 1.0}}
    comparison = Comparison([RunResult("fedavg", 0, 10, [line(10, **views)])])
    assert comparison.best_deployable("fedavg") == "averaged"
    row = comparison.rows()[0]
    assert (row.test, row.train, row.worst_class) == (None, None, None)
    assert row.loss.mean == 2.0


def cost(models: dict[str, int | None], client: int | None = 1) -> dict:
    return {"models_on_server": models, "models_on_client": client, "memory_aided": False}


def test_what_it_costs():
    lines = [
        [line(10, 7, sent=700, server=evaluation(0.5), mean=evaluation(0.5))],
        [line(10, 10, sent=1001, server=evaluation(0.5), mean=evaluation(0.5))],
    ]
    # In one of the runs more clients were heard.
    costs = [cost({"server": 65, "mean": None}), cost({"server": 71, "mean": None}, 2)]
    cells = [RunResult("fedpbc", seed, 100, lines[seed], cost=costs[seed]) for seed in (0, 1)]
    server, mean = Comparison(cells).rows()
    assert (server.models_on_server, server.models_on_client) == (71, 2)
    assert (mean.models_on_server, mean.models_on_client) == (None, 2)
    for row in (server, mean):
        assert (row.local_steps, row.uploads) == (50, round((7 + 10) / 2))
        assert (row.bytes_up, row.bytes_down) == (round(850.5), 1701)
    found = Comparison(cells).as_dict()["rows"][0]
    assert (found["uploads"], found["bytes_up"], found["bytes_down"]) == (8, 850, 1701)


def test_costs_that_were_not_counted_are_unknown():
    """Of unfinished runs, and of versions that did not count bytes."""
    cells = [
        RunResult("fedpbc", 0, 9, [line(10, 5, sent=500, server=evaluation(0.5))]),
        RunResult("fedpbc", 1, 9, [line(10, 5, server=evaluation(0.5))], cost={**cost({}, None)}),
    ]
    [row] = Comparison(cells).rows()
    assert (row.bytes_up, row.bytes_down) == (None, None)
    assert (row.models_on_server, row.models_on_client) == (None, None)
    assert row.uploads == 5


@pytest.mark.parametrize(
    ("algorithm", "server", "averaged", "client", "sent"),
    [
        ("fedavg", 1, 2, 0, (8, 8)),
        ("mifa", 8, 9, 0, (8, 8)),
        ({"name": "mifa", "memory": "client"}, 2, 3, 1, (8, 8)),
        ("scaffold", 2, 3, 1, (16, 16)),
        ("ca_fed", 1, 2, 0, (8 + 8 / 3, 8)),
        ("focus", 2, 3, 1, (8, 8)),
    ],
)
def test_costs_are_counted_in_a_comparison(algorithm, server, averaged, client, sent):
    """Six clients with three numbers each, in double precision, all of which are heard."""
    found = compare(make_task, [algorithm], (0,), links="always", rounds=4)
    rows = {row.view: row for row in found.rows()}
    assert rows["server"].models_on_server == server
    assert rows["averaged"].models_on_server == averaged
    for row in rows.values():
        assert (row.uploads, row.local_steps) == (24, 24 * 5)
        assert row.models_on_client == client
        assert (row.bytes_up, row.bytes_down) == (24 * 3 * sent[0], 24 * 3 * sent[1])


@pytest.mark.parametrize("algorithm", ["fedpbc", "fedawe"])
def test_costs_of_views_that_store_reports(algorithm):
    found = compare(make_task, [algorithm], (0,), links="always", rounds=4)
    models = {row.view: row.models_on_server for row in found.rows()}
    assert models == {"server": 1, "averaged": 2, "mean": None, "reported": 7, "corrected": 8}
    assert {row.models_on_client for row in found.rows()} == {1}


def test_a_curve_has_the_mean_and_deviation_of_every_evaluation():
    cells = [
        RunResult("fedavg", s, 10, [line(5, server=evaluation(a)), line(10, server=evaluation(b))])
        for s, (a, b) in enumerate([(0.1, 0.5), (0.3, 0.5)])
    ]
    rounds, means, deviations = Comparison(cells).curve("fedavg", "server")
    assert rounds == [5, 10]
    assert means == pytest.approx([0.2, 0.5])
    assert deviations == pytest.approx([statistics.stdev([0.1, 0.3]), 0])


def test_a_curve_of_something_else():
    comparison = Comparison([RunResult("fedavg", 0, 10, [line(5, server=evaluation(0.1))])])
    with pytest.raises(InputError, match=r"view is 'averaged', but should be server$"):
        comparison.curve("fedavg", "averaged")
    for key in ("accuracy", "per_class", None, np.datetime64("2020-01-01")):
        with pytest.raises(InputError, match=r"key is .*one of test_accuracy, train_accuracy"):
            comparison.curve("fedavg", "server", key)
    assert comparison.curve("mifa", "server") == ([], [], [])
    for call in (comparison.row, comparison.of, comparison.cost_of):
        with pytest.raises(InputError, match=r"label is .* but should be an entry's label"):
            call(np.zeros(3))


def test_what_failed_is_told_and_left_out_of_the_sums():
    good = RunResult("fedavg", 0, 10, [line(10, server=evaluation(0.4))])
    bad = RunResult("fedavg", 1, failure="the run diverged")
    lost = RunResult("mifa", 0, failure="its process was killed")
    comparison = Comparison([good, bad, lost])
    [row] = comparison.rows()
    assert row.test == Spread(0.4, 0.0, 1)
    assert comparison.algorithms == ["fedavg", "mifa"]
    found = comparison.as_dict()
    assert found["failed"] == [
        {"algorithm": "fedavg", "label": "fedavg", "seed": 1, "failure": "the run diverged"},
        {"algorithm": "mifa", "label": "mifa", "seed": 0, "failure": "its process was killed"},
    ]
    assert found["seeds"] == [0, 1]
    assert [r["algorithm"] for r in found["rows"]] == ["fedavg"]


def test_nothing_to_compare():
    comparison = Comparison([])
    assert comparison.rows() == []
    assert comparison.rounds == 0


TARGETS = np.random.default_rng(0).normal(size=(6, 3))
P = {"name": "bernoulli", "p": 0.5}


def make_task(seed: int) -> Quadratic:
    return Quadratic(TARGETS + seed, seed=seed)


def test_a_function_that_makes_no_task_is_one_line_with_its_cause():
    with pytest.raises(
        InputError, match=r"^make_task\(3\) failed: TypeError: linear\(\)"
    ) as raised:
        compare(nn.Linear(1, 1), ["fedavg"], [3], links=P, rounds=1)
    assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize("seeds", [np.zeros(()), np.zeros((1, 2), int), np.zeros(0, int), [], 3])
def test_seeds_that_are_no_list(seeds):
    with pytest.raises(InputError, match="seeds is "):
        compare(make_task, ["fedavg"], seeds, links=P, rounds=1)


def test_seeds_may_be_an_array():
    found = compare(make_task, ["fedavg"], np.arange(2), links=P, rounds=1)
    assert found.as_dict()["seeds"] == [0, 1]


def test_comparing_from_python_is_simulating_each():
    from fedpbc import simulate

    options = {"links": P, "rounds": 12, "evaluate_every": 4}
    found = compare(make_task, ["fedpbc", {"name": "fedau", "cutoff": 2}], (3, 8), **options)
    assert [(c.algorithm, c.seed, c.clients) for c in found.runs] == [
        ("fedpbc", 3, 6),
        ("fedpbc", 8, 6),
        ("fedau", 3, 6),
        ("fedau", 8, 6),
    ]
    alone = simulate(make_task(8), {"name": "fedau", "cutoff": 2}, seed=8, **options)
    last = found.runs[3].metrics[-1]["views"]
    assert last["server"]["test_loss"] == alone.metrics[-1].views["server"].test_loss
    # The same links for both.
    for one, other in ((0, 2), (1, 3)):
        assert [m["active"] for m in found.runs[one].metrics] == [
            m["active"] for m in found.runs[other].metrics
        ]


def test_one_algorithm_under_several_settings_is_labelled_by_what_differs():
    tables = [{"name": "fedau", "cutoff": n} for n in (2, 50)]
    mine = {"name": "fedavg", "global_lr": 0.5, "rounds": 6, "label": "careful"}
    found = compare(make_task, [*tables, "fedavg", mine], "3", links=P, rounds=12, ceiling=True)
    assert found.labels == ["fedau:cutoff=2", "fedau:cutoff=50", "fedavg", "careful", "ceiling"]
    assert found.algorithms == ["fedau", "fedavg"]
    assert [found.algorithm_of(label) for label in found.labels][3:] == ["fedavg", "fedavg"]
    with pytest.raises(InputError, match="label is 'fedau', but should be one of fedau:cutoff=2"):
        found.algorithm_of("fedau")
    rounds = [found.curve(label, "server", "test_loss")[0][-1] for label in found.labels]
    assert rounds == [12, 12, 12, 6, 12]
    # The ceiling hears everyone in every round.
    uploads = {row.label: row.uploads for row in found.rows()}
    assert uploads["ceiling"] == 12 * 6
    assert uploads["fedavg"] < 12 * 6
    alone = compare(make_task, [{"name": "fedau", "cutoff": 2}], [3], links=P, rounds=12)
    assert alone.labels == ["fedau"]
    assert alone.runs[0].metrics[-1]["views"] == found.of("fedau:cutoff=2")[0].metrics[-1]["views"]


def test_options_of_simulate_are_swept():
    found = compare(make_task, ["fedavg"], [0], sweep={"links.p": [0.2, 0.9]}, links=P, rounds=9)
    assert found.labels == ["fedavg:links.p=0.2", "fedavg:links.p=0.9"]
    few, many = (row.uploads for row in found.rows() if row.view == "server")
    assert few < many
    with pytest.raises(
        InputError, match=r"sweep\.train\.learning_rate is unknown: use one of links"
    ):
        compare(make_task, ["fedavg"], [0], sweep={"train.learning_rate": [1]}, links=P, rounds=9)
    with pytest.raises(InputError, match=r"algorithms\.fedavg\.data is unknown"):
        compare(make_task, [{"name": "fedavg", "data": "digits"}], [0], links=P, rounds=9)


def test_a_comparison_in_a_folder_goes_on_and_can_be_widened(tmp_path):
    first = compare(make_task, ["fedavg"], [0], links=P, rounds=6, out=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    whole = compare(make_task, ["fedavg", "mifa"], "0-1", links=P, rounds=6, out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert whole.runs[0].metrics[-1]["views"] == first.runs[0].metrics[-1]["views"]
    assert whole.cost_of("fedavg") == first.cost_of("fedavg")
    assert len(whole.finished) == 4
    with pytest.raises(FedpbcError, match="fedavg/seed-0 belongs to another run"):
        compare(make_task, ["fedavg"], [0], links=P, rounds=7, out=tmp_path)


def test_the_papers_seven_with_three_seeds_unless_told_otherwise():
    found = compare(make_task, links=P, rounds=2)
    assert tuple(found.algorithms) == PAPER_ALGORITHMS
    assert len(found.runs) == 7 * 3


def test_an_algorithm_of_ones_own_is_compared_too():
    class Halfway(Algorithm):
        """FedAvg that only goes half the way."""

        name = "halfway"

        def aggregate(self, round, updates):
            if updates:
                self.x = mean(advance(self.x, u, 0.5) for u in updates)

    try:
        found = compare(make_task, [Halfway, "fedavg"], (0,), links="always", rounds=3)
        losses = {r.algorithm: r.loss.mean for r in found.rows() if r.view == "server"}
        assert losses["halfway"] > losses["fedavg"]
    finally:
        ALGORITHMS.pop("halfway", None)


def test_one_that_diverges_does_not_stop_the_others():
    wild = LocalTraining(learning_rate=1e80, local_steps=5, decay=False)

    def task(seed: int) -> Quadratic:
        return Quadratic(TARGETS, training=wild if seed else None, seed=seed)

    found = compare(task, ["fedavg", "fedpbc"], (0, 1), links="always", rounds=3)
    assert [(c.algorithm, c.seed) for c in found.failed] == [("fedavg", 1), ("fedpbc", 1)]
    assert all("diverged" in c.failure for c in found.failed)
    assert {r.algorithm for r in found.rows()} == {"fedavg", "fedpbc"}


def test_wrong_input_is_no_failed_cell():
    with pytest.raises(InputError, match="links is 'nothing'"):
        compare(make_task, ["fedavg"], (0,), links="nothing", rounds=3)
    with pytest.raises(InputError, match="algorithms is 'fedpcb'"):
        compare(make_task, ["fedpcb"], (0,), links=P, rounds=3)
    assert issubclass(DivergedError, ArithmeticError)


@pytest.mark.parametrize("wrong", ["loss", b"x", None, 3])
def test_a_curve_of_something_that_was_not_evaluated(wrong):
    compared = Comparison([scored_run("fedavg", 0, 0.5)])
    assert compared.curve("fedavg", "server") == ([10], [0.5], [0.0])
    with pytest.raises(InputError, match=r"^key is "):
        compared.curve("fedavg", "server", wrong)
    with pytest.raises(InputError, match=r"^view is "):
        compared.curve("fedavg", wrong)
