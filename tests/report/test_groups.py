from __future__ import annotations

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.report.chart_data import thin
from fedpbc.report.groups import group_runs
from fedpbc.report.load import load_runs
from tests.synthetic_runs import write_grid, write_run


def groups(paths):
    """Return algorithms and seeds of each group, by title."""
    return {
        group.title: [(run.algorithm, run.seed) for run in group.runs]
        for group in group_runs(load_runs(paths))
    }


def names(group):
    """Return the names of a group's curves, in order."""
    return list(dict.fromkeys(map(group.label_of, group.runs)))


FOUR = [("fedpbc", 0), ("fedpbc", 1), ("fedavg", 0), ("fedavg", 1)]


def test_algorithms_and_seeds_are_one_group(tmp_path):
    assert groups(write_grid(tmp_path)) == {"digits · bernoulli": FOUR}


@pytest.mark.parametrize(
    ("more", "titles"),
    [
        ({"rounds": 50}, ("rounds=40", "rounds=50")),
        ({"every": 20}, ("evaluate_every=10", "evaluate_every=20")),
        (
            {"data__alpha": 1.0, "links__sigma": 5.0},
            ("data.alpha=0.1 · links.sigma=10.0", "data.alpha=1.0 · links.sigma=5.0"),
        ),
    ],
)
def test_what_differs_is_a_group_of_its_own_and_in_its_title(tmp_path, more, titles):
    one, two = write_grid(tmp_path / "one"), write_grid(tmp_path / "two", **more)
    assert groups([*one, *two]) == {f"digits · bernoulli · {title}": FOUR for title in titles}


@pytest.mark.parametrize(
    ("more", "first", "second"),
    [
        ({"data__alpha": 1.0}, "alpha=0.1", "alpha=1"),
        ({"links__sigma": 5.0}, "sigma=10", "sigma=5"),
        ({"train__local_steps": 1}, "local_steps=5", "local_steps=1"),
        ({"train__learning_rate": 0.1}, "learning_rate=0.05", "learning_rate=0.1"),
    ],
)
def test_what_differs_in_one_option_is_overlaid_and_named_by_it(tmp_path, more, first, second):
    one, two = write_grid(tmp_path / "one"), write_grid(tmp_path / "two", **more)
    [group] = group_runs(load_runs([*one, *two]))
    assert group.title == "digits · bernoulli"
    assert names(group) == [
        *(f"fedpbc {value}" for value in (first, second)),
        *(f"fedavg {value}" for value in (first, second)),
    ]
    # Of one algorithm, the option alone.
    [alone] = group_runs(load_runs([*one[:2], *two[:2]]))
    assert names(alone) == [first, second]


def test_of_two_options_one_is_overlaid_and_the_other_a_title(tmp_path):
    paths = []
    for alpha in (0.1, 0.5, 1.0):
        for sigma in (5.0, 10.0):
            folder = tmp_path / f"{alpha} {sigma}"
            paths += write_grid(folder, ["fedpbc"], data__alpha=alpha, links__sigma=sigma)
    found = {group.title: names(group) for group in group_runs(load_runs(paths))}
    assert found == {
        f"digits · bernoulli · links.sigma={sigma}": ["alpha=0.1", "alpha=0.5", "alpha=1"]
        for sigma in ("5.0", "10.0")
    }


def test_too_many_curves_are_not_overlaid(tmp_path):
    paths = []
    for k in range(25):
        paths.append(write_run(tmp_path / str(k), "fedpbc", data__alpha=1.0 + k, fleet=False))
    assert len(group_runs(load_runs(paths))) == 25
    assert len(group_runs(load_runs(paths[:24]))) == 1


def test_other_options_without_an_algorithm_in_common_are_apart(tmp_path):
    one = write_grid(tmp_path / "one", ["fedpbc"])
    two = write_grid(tmp_path / "two", ["fedavg"], data__alpha=1.0)
    assert len(groups([*one, *two])) == 2


def test_data_and_links_are_always_in_the_title(tmp_path):
    one = write_grid(tmp_path / "one")
    two = write_grid(tmp_path / "two", data__name="fashion", model__name="softmax")
    three = write_grid(tmp_path / "three", links__name="markov")
    assert list(groups([*one, *two, *three])) == [
        "digits · bernoulli",
        "fashion · bernoulli",
        "digits · markov",
    ]


def test_where_it_ran_does_not_matter(tmp_path):
    one = write_grid(tmp_path / "one", ["fedpbc"])
    two = write_grid(tmp_path / "two", ["fedavg"], engine="pool", workers=2, device="cuda")
    assert groups([*one, *two]) == {"digits · bernoulli": FOUR}


def test_files_count_by_what_is_in_them(tmp_path):
    paths = []
    for name, value in (("a", 1), ("b", 1), ("c", 0)):
        algorithm = {"a": "fedpbc", "b": "fedavg", "c": "mifa"}[name]
        path = write_run(tmp_path / name, algorithm, links__file="inputs/links-file.npy")
        (path / "inputs").mkdir()
        np.save(path / "inputs" / "links-file.npy", np.full((40, 8), value))
        paths.append(path)
    by_title = groups(paths)
    assert list(by_title.values()) == [[("fedpbc", 0), ("fedavg", 0)], [("mifa", 0)]]
    assert all("links.file=links-file.npy " in title for title in by_title)


def test_rates_tuned_for_each_algorithm_stay_together_with_a_note(tmp_path):
    one = write_grid(tmp_path / "one", ["fedpbc"], train__learning_rate=0.1)
    two = write_grid(tmp_path / "two", ["fedavg"], train__learning_rate=0.01)
    [group] = group_runs(load_runs([*one, *two]))
    assert len(group.runs) == 4
    assert group.notes == [
        "learning rates differ between algorithms: fedpbc η_0 = 0.1, η_g = 1.0; "
        "fedavg η_0 = 0.01, η_g = 1.0."
    ]


def test_several_rates_of_one_algorithm_are_named(tmp_path):
    one = write_grid(tmp_path / "one")
    two = write_grid(tmp_path / "two", ["fedavg"], train__learning_rate=0.1)
    [group] = group_runs(load_runs([*one, *two]))
    assert names(group) == ["fedpbc", "fedavg learning_rate=0.05", "fedavg learning_rate=0.1"]
    three = write_grid(
        tmp_path / "three", ["fedavg"], train__learning_rate=0.1, train__global_learning_rate=2.0
    )
    # Two options, as in a grid search: a group for each pair.
    assert list(groups([*one, *three])) == [
        "digits · bernoulli · train.global_learning_rate=1.0 · train.learning_rate=0.05",
        "digits · bernoulli · train.global_learning_rate=2.0 · train.learning_rate=0.1",
    ]


def test_variants_of_an_algorithm_are_named_by_its_option(tmp_path):
    one = write_grid(tmp_path / "one", ["fedpbc", "fedau"], algorithm__cutoff=50)
    two = write_run(tmp_path / "two", "fedau", algorithm__cutoff=3)
    [group] = group_runs(load_runs([*one, two]))
    assert names(group) == ["fedpbc", "fedau cutoff=50", "fedau cutoff=3"]
    assert len(group.runs) == 5
    more = {"algorithm__cutoff": 3, "algorithm__over": "heard"}
    three = write_run(tmp_path / "three", "fedau", **more)
    by_title = groups([*one, three])
    assert [len(runs) for runs in by_title.values()] == [4, 1]
    assert "fedau.cutoff=3" in list(by_title)[1]


def planned(folder, *labels):
    """Write the plan of a comparison with one seed."""
    tables = {label: {} for label in labels}
    (folder / "compare.toml").write_text(tomli_w.dumps({"seeds": [0], "algorithms": tables}))


def test_runs_of_one_comparison_belong_together_with_their_ceiling(tmp_path):
    paths = []
    for alpha in ("0.1", "1"):
        more = {"data__alpha": float(alpha)}
        for name in ("fedpbc", "fedavg"):
            folder = tmp_path / f"{name}:data.alpha={alpha}" / "seed-0"
            paths.append(write_run(folder, name, **more, clients=8 if alpha == "1" else 9))
        folder = tmp_path / f"ceiling:data.alpha={alpha}" / "seed-0"
        paths.append(write_run(folder, "fedavg", links={"name": "always"}, **more))
    planned(tmp_path, *(path.parent.name for path in paths))
    [group] = group_runs(load_runs(paths))
    assert names(group) == [
        "fedpbc alpha=0.1",
        "fedavg alpha=0.1",
        "fedpbc alpha=1",
        "fedavg alpha=1",
        "ceiling alpha=0.1",
        "ceiling alpha=1",
    ]
    assert group.title == "digits · bernoulli"
    assert "data.alpha" not in group.shared
    assert group.notes == ["links and data of the clients are drawn for fedpbc alpha=0.1."]


def test_a_ceiling_joins_its_own_comparison_only(tmp_path):
    one, two = write_grid(tmp_path / "one"), write_grid(tmp_path / "two", rounds=50)
    ceiling = tmp_path / "two" / "ceiling" / "seed-0"
    write_run(ceiling, "fedavg", rounds=50, links={"name": "always"})
    found = {group.title: names(group) for group in group_runs(load_runs([*one, ceiling, *two]))}
    assert found == {
        "digits · bernoulli · rounds=40": ["fedpbc", "fedavg"],
        "digits · bernoulli · rounds=50": ["fedpbc", "fedavg", "ceiling"],
    }
    [alone] = group_runs(load_runs([ceiling]))
    assert alone.title == "digits · always"


def test_a_comparison_from_python_is_named_by_what_differs(tmp_path):
    python = {"task": {"name": "python"}}
    paths = [
        write_run(tmp_path / label / "seed-0", label.partition(":")[0], **python, **more)
        for label, more in (
            ("fedpbc", {"links__sigma": 5.0}),
            ("fedavg", {"links__sigma": 10.0}),
            ("fedau:cutoff=5", {"links__sigma": 10.0, "algorithm__cutoff": 5}),
            ("fedau:cutoff=9", {"links__sigma": 10.0, "algorithm__cutoff": 9}),
        )
    ]
    [group] = group_runs(load_runs(paths))
    # Without a plan, folders may hold anything: a difference in the links is always said.
    assert names(group) == [
        "fedpbc sigma=5",
        "fedavg sigma=10",
        "fedau cutoff=5 sigma=10",
        "fedau cutoff=9 sigma=10",
    ]


def test_labels_of_ones_own_are_names(tmp_path):
    paths = [
        write_run(tmp_path / "careful" / "seed-0", "fedavg", train__learning_rate=0.01),
        write_run(tmp_path / "fedavg" / "seed-0", "fedavg"),
    ]
    planned(tmp_path, "careful", "fedavg")
    [group] = group_runs(load_runs(paths))
    assert names(group) == ["careful", "fedavg"]


def test_copies_count_once_the_furthest_of_them(tmp_path):
    one = write_run(tmp_path / "one", upto=20)
    two = write_run(tmp_path / "two")
    [group] = group_runs(load_runs([one, two]))
    assert [run.path for run in group.runs] == [two]
    assert group.notes == ["1 of the runs are copies of others; each is counted once."]


def test_different_tasks_made_in_python_are_apart(tmp_path):
    python = {"task": {"name": "python"}}
    one = write_grid(tmp_path / "one", ["fedpbc"], **python)
    two = write_grid(tmp_path / "two", ["fedavg"], **python)
    assert list(groups([*one, *two])) == ["a task made in Python · bernoulli"]
    three = write_grid(tmp_path / "three", ["fedavg"], rounds=39, every=39, **python)
    # The same options as the first, but other links: as if they came from another table.
    for path in three:
        text = (one[0] / "config.toml").read_text().replace('"fedpbc"', '"fedavg"')
        text = text.replace("seed = 0", f"seed = {path.name[-1]}").replace(
            "rounds = 40", "rounds = 40"
        )
        (path / "config.toml").write_text(text)
        (path / "metrics.jsonl").write_text((two[0] / "metrics.jsonl").read_text())
    by_title = groups([*one, *three])
    assert [len(runs) for runs in by_title.values()] == [2, 2]
    assert [title.rpartition("/")[2] for title in by_title] == ["one", "three"]


@given(count=st.integers(1, 3000), limit=st.integers(2, 400))
def test_thinning_keeps_the_first_and_last_point(count, limit):
    indices = thin(count, limit)
    assert len(indices) == min(count, limit)
    assert indices[0] == 0
    assert indices[-1] == count - 1
    assert indices == sorted(set(indices))
