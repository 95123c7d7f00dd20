from __future__ import annotations

import numpy as np
import pytest
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


FOUR = [("fedpbc", 0), ("fedpbc", 1), ("fedavg", 0), ("fedavg", 1)]


def test_algorithms_and_seeds_are_one_group(tmp_path):
    assert groups(write_grid(tmp_path)) == {"digits · bernoulli": FOUR}


@pytest.mark.parametrize(
    ("more", "titles"),
    [
        ({"data__alpha": 1.0}, ("data.alpha=0.1", "data.alpha=1.0")),
        ({"links__sigma": 5.0}, ("links.sigma=10.0", "links.sigma=5.0")),
        ({"rounds": 50}, ("rounds=40", "rounds=50")),
        ({"every": 20}, ("evaluate_every=10", "evaluate_every=20")),
        ({"train__local_steps": 1}, ("train.local_steps=5", "train.local_steps=1")),
    ],
)
def test_what_differs_is_a_group_of_its_own_and_in_its_title(tmp_path, more, titles):
    one, two = write_grid(tmp_path / "one"), write_grid(tmp_path / "two", **more)
    assert groups([*one, *two]) == {f"digits · bernoulli · {title}": FOUR for title in titles}


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


def test_several_rates_of_one_algorithm_are_apart(tmp_path):
    one = write_grid(tmp_path / "one")
    two = write_grid(tmp_path / "two", ["fedavg"], train__learning_rate=0.1)
    assert groups([*one, *two]) == {
        "digits · bernoulli · train.learning_rate=0.05": FOUR,
        "digits · bernoulli · train.learning_rate=0.1": [("fedavg", 0), ("fedavg", 1)],
    }


def test_a_variant_of_an_algorithm_is_apart(tmp_path):
    one = write_grid(tmp_path / "one", ["fedpbc", "fedau"], algorithm__cutoff=50)
    two = write_run(tmp_path / "two", "fedau", algorithm__cutoff=3)
    by_title = groups([*one, two])
    assert [len(runs) for runs in by_title.values()] == [4, 1]
    assert "fedau.cutoff=3" in list(by_title)[1]


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
